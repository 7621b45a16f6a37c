import csv
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from expertp.errors import InputError
from expertp.paper.catalogue import FINDINGS, STUDIES, find
from expertp.paper.constants import constants_label
from expertp.paper.cost import cost, h100_hours
from expertp.paper.listing import PROFILES
from expertp.paper.profile import find_source, load_profile
from expertp.study.cells import arm_hps, arms, expand, sizes, swept_on, unique_runs
from expertp.study.cost import cost_of_runs

CPU, PAPER = (load_profile(name) for name in ("cpu", "paper"))
NAMES = [
    "transfer-quarter", "transfer-twelfth", "loss-collapse", "speedrun", "medium", "tradeoff", "tradeoff-long",
    "bias-shift", "weight-decay", "constants-loss", "constants-load", "fixed-topk", "fan-in-down", "scaling-fit",
    "joint-scale", "horizon", "imbalance", "softmax", "soft-router",
]  # fmt: skip


def studies(profile):
    return {name: profile.study(name, "data") for name in STUDIES}


def test_all_findings_of_the_paper_are_there():
    assert [finding.name for finding in FINDINGS] == NAMES
    places = [finding.where for finding in FINDINGS]
    assert len(set(places)) == 19
    assert {int(place.split(",")[0].removeprefix("Fig. ")) for place in places} == set(range(1, 20))


@pytest.mark.heavy
@pytest.mark.parametrize("name", PROFILES)
def test_every_study_of_a_finding_can_be_expanded(name):
    profile = load_profile(name)
    for study, spec in studies(profile).items():
        assert expand(spec), study
        assert profile.corpus_of(study) in profile.corpora


@pytest.mark.parametrize("study", [name for name in STUDIES if CPU.study(name, "data").axes])
def test_an_axis_of_the_cpu_profile_grows_four_times_or_stays_at_the_base(study):
    spec = CPU.study(study, "data")
    for axis in spec.axes:
        scales = [size.scale for size in sizes(spec, axis)]
        assert max(scales) >= 4 or scales == [1.0], axis


@pytest.mark.heavy
def test_transfers_have_lr_and_init_on_four_axes_and_controls_on_cpu():
    for name in ("transfer-quarter", "transfer-twelfth"):
        for profile in (CPU, PAPER):
            specs = [profile.study(study, "data") for study in (name, f"{name}-depth")]
            assert [list(spec.axes) for spec in specs] == [["width", "experts", "alpha"], ["depth"]]
            for spec in specs:
                assert all(swept_on(spec, axis) == ("log2_lr", "log2_init_std") for axis in spec.axes)
        controls = [
            {axis for arm in CPU.study(each, "").arms.values() for axis in arm.control}
            for each in (name, f"{name}-depth")
        ]
        assert controls == [{"width", "experts", "alpha"}, {"depth"}]
    for profile in (CPU, PAPER):
        assert profile.study("transfer-quarter", "").base.kappa == Fraction(1, 4)
        assert profile.study("transfer-twelfth", "").base.kappa == Fraction(1, 12)


def test_the_grids_of_cpu_are_half_octaves_around_zero_shot():
    study = CPU.study("weight-decay", "data").replace(chosen=None)
    grids = CPU.common["grids"]
    centre_lr, centre_init = math.log2(study.hps.lr), math.log2(study.hps.init_std)
    assert [value - centre_lr for value in grids["log2_lr"]] == [-1.5, -1, -0.5, 0, 0.5, 1, 1.5]
    assert {-1, -0.5, 0, 0.5, 1} <= {value - centre_init for value in grids["log2_init_std"]}
    assert isinstance(study.hps.constants, Mapping)


def test_an_adaptive_study_begins_with_few_cells_where_the_profile_has_a_limit_of_time():
    assert CPU.minutes == 100
    assert CPU.is_adaptive("transfer-quarter")
    assert not CPU.is_adaptive("fixed-topk")
    assert not PAPER.is_adaptive("transfer-quarter")
    assert CPU.study("transfer-quarter", "data").chosen is not None
    assert PAPER.study("transfer-quarter", "data").chosen is None


def test_learning_rates_in_octaves_go_with_the_studys_own():
    twelfth = CPU.study("transfer-twelfth", "data")
    assert twelfth.hps.lr != CPU.study("transfer-quarter", "data").hps.lr
    around = [value - math.log2(twelfth.hps.lr) for value in twelfth.grids.log2_lr]
    assert around == [-1.5, -1, -0.5, 0, 0.5, 1, 1.5]
    control = CPU.study("fixed-topk", "data")
    assert [value - math.log2(control.hps.lr) for value in control.grids.log2_lr] == [
        -2,
        -1.5,
        -1,
        -0.5,
        0,
        0.5,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("zero_shot", "transfer"),
    [
        ("zero-shot-quarter", "transfer-quarter"),
        ("zero-shot-quarter-beside", "transfer-quarter-beside"),
        ("zero-shot-twelfth", "transfer-twelfth"),
    ],
)
def test_zero_shot_studies_have_all_sizes_and_share_the_other_runs(zero_shot, transfer):
    ours, theirs = (unique_runs(expand(CPU.study(name, "data"))) for name in (zero_shot, transfer))
    assert CPU.corpus_of(zero_shot) == CPU.corpus_of(transfer)
    spec = CPU.study(zero_shot, "data")
    assert all([size.scale for size in sizes(spec, axis)] == [1, 2, 4] for axis in spec.axes)
    between = {run for run in ours if run not in theirs}
    assert len(between) == len(spec.axes) * len(spec.seeds)


def paper_counts(name):
    return [each.model.counts() for each in cost(PAPER, [find(name)]).models]


@pytest.mark.heavy
def test_parameters_are_the_papers():
    base = PAPER.study("transfer-quarter", "").base.counts()
    assert (base.paper_total // 10**6, base.paper_active // 10**6) == (51, 38)
    largest = paper_counts("joint-scale")[-1]
    assert (round(largest.paper_total / 1e9, 2), round(largest.paper_active / 1e6)) == (2.54, 944)
    assert 124 in [round(each.paper_active / 1e6) for each in paper_counts("speedrun")]
    assert [round(each.paper_active / 1e6) for each in paper_counts("medium")].count(355) == 4


def test_the_papers_own_settings():
    study = PAPER.study("transfer-quarter", "")
    assert (study.base.n_embd, study.base.n_layer, study.base.vocab_size, study.base.context) == (512, 8, 50304, 1024)
    assert (study.train.steps, study.train.warmup_steps, study.train.schedule) == (2000, 1000, "constant")
    assert study.train.batch_tokens == pytest.approx(500_000, rel=0.001)
    assert study.hps.constants == "paper"
    assert study.hps.betas == (0.9, 0.95)


@pytest.mark.heavy
def test_findings_share_their_runs():
    def runs(*names):
        return cost(CPU, [find(name) for name in names]).runs

    assert runs("loss-collapse", "scaling-fit", "tradeoff") < sum(
        map(runs, ("loss-collapse", "scaling-fit", "tradeoff"))
    )
    assert runs("constants-loss", "constants-load") == runs("constants-loss")


def test_cost_counts_a_run_once():
    runs = unique_runs(expand(CPU.study("granularity", "data")))
    found = cost_of_runs([*runs, *runs])
    assert found.runs == len(runs)
    assert found.tokens == sum(run.train.steps * run.train.batch_tokens for run in runs)
    assert found.flops == sum(run.train.steps * run.train.batch_tokens * run.model.flops_per_token() for run in runs)
    assert h100_hours(found) == pytest.approx(found.flops / (989e12 * 0.35) / 3600)


def test_a_study_takes_the_first_corpus_of_its_profile_unless_it_names_another():
    assert [each.corpus_of("speedrun") for each in (CPU, PAPER)] == ["k8s-docs", "fineweb"]
    assert [each.corpus_of("transfer-twelfth") for each in (CPU, PAPER)] == ["builtin", "c4"]
    for profile in (CPU, PAPER):
        assert profile.study("medium-twelfth", "data").base.kappa == Fraction(1, 12)


def test_text_comes_from_a_folder_or_the_built_in_corpus(tmp_path, monkeypatch):
    corpus = CPU.corpora["k8s-docs"]
    monkeypatch.delenv("EXPERTP_CORPORA", raising=False)
    source = find_source("k8s-docs", corpus)
    assert (source.text, source.name) == ("builtin", "builtin-512")
    assert "EXPERTP_CORPORA is not set" in source.note
    monkeypatch.setenv("EXPERTP_CORPORA", str(tmp_path))
    assert f"{tmp_path / 'k8s-docs'} does not exist" in find_source("k8s-docs", corpus).note
    (tmp_path / "k8s-docs").mkdir()
    assert find_source("k8s-docs", corpus).text == str(tmp_path / "k8s-docs")
    assert not find_source("builtin", CPU.corpora["builtin"]).note
    assert find_source("c4", PAPER.corpora["c4"]).text == "hf:allenai/c4:en"


def test_a_name_that_is_no_finding_is_refused():
    with pytest.raises(InputError, match="no finding 'speedrum'; did you mean 'speedrun'"):
        find("speedrum")
    with pytest.raises(InputError, match="no profile 'gpu'; "):
        load_profile("gpu")


@pytest.mark.parametrize(("name", "larger"), [("cpu", "E8A2"), ("paper", "E4A1")])
def test_models_that_a_race_names_are_in_both_profiles(name, larger):
    profile = load_profile(name)
    assert list(profile.study("speedrun", "data").joint) == [larger]
    models = {larger: "speedrun", "E4A1": "medium", "E16A4": "medium", "E12A1": "medium-twelfth"}
    for axis, study in models.items():
        spec = profile.study(study, "data")
        model = sizes(spec, axis)[-1].model
        assert f"E{model.n_exp}A{model.n_act}" == axis
        dense = profile.study(f"{study.removesuffix('-twelfth')}-dense", "data").base
        assert (dense.n_embd, dense.n_layer) == (model.n_embd, model.n_layer)
        assert dense.alpha_ffn == model.n_act * model.alpha_ffn
    for study in ("speedrun-dense", "medium-dense"):
        spec = profile.study(study, "data")
        values = len(spec.grids.log2_lr) + len(spec.grids.log2_init_std) - 1  # its centre is on both grids
        assert len(unique_runs(expand(spec))) == values * len(spec.seeds)


def test_models_of_one_granularity_study_have_the_same_active_size():
    for study in ("granularity", "granularity-long"):
        spec = CPU.study(study, "data")
        models = [sizes(spec, axis)[-1].model for axis in spec.joint]
        assert {model.n_act * model.alpha_ffn for model in models} == {4}
        assert {model.kappa for model in models} == {Fraction(1, 4)}
        assert min(model.n_act for model in models) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("profile", [CPU, PAPER], ids=PROFILES)
def test_what_is_derived_from_the_base_learning_rate_goes_with_it(profile):
    for name, spec in studies(profile).items():
        if spec.grids.log2_lr and len(spec.grids.log2_lr) == 1:
            assert spec.grids.log2_lr == (math.log2(spec.hps.lr),), name
    spec = profile.study("weight-decay", "data")
    for name in spec.arms:
        hps = arm_hps(spec, name)
        tau = spec.train.steps * hps.lr * hps.weight_decay
        assert tau == pytest.approx(float(name.removeprefix("tau ")), rel=0.01)


def test_three_sets_of_constants_are_compared_on_cpu_and_two_in_the_paper():
    for profile, names in ((CPU, ["tuned", "paper", "all ones"]), (PAPER, ["paper", "all ones"])):
        spec = profile.study("constants", "data")
        assert [constants_label(each.hps) for each in arms(spec)] == names
    assert constants_label(CPU.study("transfer-quarter-beside", "data").hps) == "paper"
    assert constants_label(PAPER.study("transfer-quarter-beside", "data").hps) == "all ones"


def test_the_page_about_constants_has_the_numbers_of_its_table():
    folder = Path(__file__).parents[2] / "docs" / "results"
    with (folder / "constants" / "path.csv").open() as file:
        taken = [row for row in csv.DictReader(file) if row["verdict"] == "taken"]
    page = (folder / "constants.md").read_text()
    assert all(f"| {float(row['loss']):.4f} |" in page for row in taken)
    assert all(f"| {float(row['load']):.3f} | {float(row['load_above']):.3f} |" in page for row in taken)
    assert all(f"| {float(row['change']):+.4f} ± {float(row['error']):.4f} |" in page for row in taken[1:])
