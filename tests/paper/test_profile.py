import csv
import math
from fractions import Fraction
from pathlib import Path

import pytest

from expertp.config import build
from expertp.errors import InputError
from expertp.paper.catalogue import FINDINGS, STUDIES, find
from expertp.paper.cost import cost, h100_hours
from expertp.paper.listing import PROFILES
from expertp.paper.profile import find_source, load_profile
from expertp.spec import BaseHPs
from expertp.study.cells import arm_hps, expand, sizes, swept_on, unique_runs
from expertp.study.cost import cost_of_runs
from expertp.study.load import load_study
from expertp.util.plain_yaml import read_yaml

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
def test_transfers_have_lr_and_init_on_four_axes_and_four_seeds():
    for profile in (CPU, PAPER):
        for name in ("transfer-quarter", "transfer-twelfth"):
            study = profile.study(name, "data")
            assert set(study.axes) == {"width", "depth", "experts", "alpha"}
            assert all(swept_on(study, axis) == ("log2_lr", "log2_init_std") for axis in study.axes)
            assert len(study.seeds) == 4
    assert PAPER.study("transfer-quarter", "").base.kappa == Fraction(1, 4)
    assert PAPER.study("transfer-twelfth", "").base.kappa == Fraction(1, 12)


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
    together = [find(name) for name in ("transfer-quarter", "loss-collapse", "transfer-twelfth", "scaling-fit")]
    apart = sum(cost(CPU, [each]).runs for each in (find("transfer-quarter"), find("transfer-twelfth")))
    assert cost(CPU, together).runs == apart
    both = cost(CPU, [find("transfer-quarter"), find("constants-loss")]).runs
    alone = cost(CPU, [find("transfer-quarter")]).runs + cost(CPU, [find("constants-loss")]).runs
    assert both == alone - 7 * 4  # the base over learning rates


def test_cost_counts_a_run_once():
    runs = unique_runs(expand(CPU.study("granularity", "data")))
    found = cost_of_runs([*runs, *runs])
    assert found.runs == len(runs)
    assert found.tokens == sum(run.train.steps * run.train.batch_tokens for run in runs)
    assert found.flops == sum(run.train.steps * run.train.batch_tokens * run.model.flops_per_token() for run in runs)
    assert h100_hours(found) == pytest.approx(found.flops / (989e12 * 0.35) / 3600)


def test_a_study_takes_the_first_corpus_of_its_profile_unless_it_names_another():
    assert [each.corpus_of("speedrun") for each in (CPU, PAPER)] == ["novels", "fineweb"]
    assert [each.corpus_of("transfer-twelfth") for each in (CPU, PAPER)] == ["k8s-docs", "c4"]
    for profile in (CPU, PAPER):
        assert profile.study("medium-twelfth", "data").base.n_exp == 12


def test_text_comes_from_a_folder_or_the_built_in_corpus(tmp_path, monkeypatch):
    corpus = CPU.corpora["novels"]
    monkeypatch.delenv("EXPERTP_CORPORA", raising=False)
    source = find_source("novels", corpus)
    assert (source.text, source.name) == ("builtin", "builtin-512")
    assert "EXPERTP_CORPORA is not set" in source.note
    monkeypatch.setenv("EXPERTP_CORPORA", str(tmp_path))
    assert f"{tmp_path / 'novels'} does not exist" in find_source("novels", corpus).note
    (tmp_path / "novels").mkdir()
    assert find_source("novels", corpus).text == str(tmp_path / "novels")
    assert find_source("c4", PAPER.corpora["c4"]).text == "hf:allenai/c4:en"


def test_a_name_that_is_no_finding_is_refused():
    with pytest.raises(InputError, match="no finding 'speedrum'; did you mean 'speedrun'"):
        find("speedrum")
    with pytest.raises(InputError, match="no profile 'gpu'; "):
        load_profile("gpu")


@pytest.mark.parametrize("name", PROFILES)
def test_models_that_a_race_names_are_in_both_profiles(name):
    profile = load_profile(name)
    assert list(profile.study("speedrun", "data").joint) == ["E4A1"]
    assert list(profile.study("medium", "data").joint) == ["E4A1", "E16A4"]
    assert list(profile.study("medium-twelfth", "data").joint) == ["E12A1"]
    for study in ("speedrun-dense", "medium-dense"):
        spec = profile.study(study, "data")
        values = len(spec.grids.log2_lr) + len(spec.grids.log2_init_std) - 1  # its centre is on both grids
        assert len(unique_runs(expand(spec))) == values * len(spec.seeds)


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


def test_the_cpu_profile_holds_what_was_tuned_at_its_base():
    folder = Path(__file__).parents[2] / "docs" / "results"
    tuned = load_study(folder / "constants" / "study.yaml")
    profile = CPU.study("transfer-quarter", "data")
    preset = read_yaml((folder / "constants" / "preset.yaml").read_text())["hps"]
    assert profile.hps == build(BaseHPs, {"bias_lr": 0.1, **preset}, "preset")
    assert profile.base == tuned.base
    told = {"data", "log_every"}
    assert profile.train.model_dump(exclude=told) == tuned.train.model_dump(exclude=told)
    with (folder / "constants" / "path.csv").open() as file:
        taken = [row for row in csv.DictReader(file) if row["verdict"] == "taken"]
    page = (folder / "constants.md").read_text()
    assert all(f"| {float(row['loss']):.4f} |" in page for row in taken)
    assert all(f"| {float(row['load']):.3f} | {float(row['load_above']):.3f} |" in page for row in taken)
    assert all(f"| {float(row['change']):+.4f} ± {float(row['error']):.4f} |" in page for row in taken[1:])
