from pathlib import Path

import pytest

from expertp.config import load_study
from expertp.errors import InputError
from expertp.study import expand, scale_of

EXAMPLE = Path(__file__).parents[1] / "configs/study.yaml"
ALONE = "contrasts={}"


def study(*overrides):
    return load_study(EXAMPLE, overrides)


def test_the_example_expands_to_each_run_once():
    runs = expand(study())
    assert len({run.model_dump_json() for run in runs}) == len(runs) == 246
    assert expand(study()) == runs
    flops = [run.model.flops_per_token() for run in runs]
    assert flops == sorted(flops)


def test_a_larger_grid_keeps_the_runs_of_a_smaller_one():
    small, large = (expand(study(ALONE, f"grids.log2_lr={grid}")) for grid in ([-7, -6], [-8, -7, -6, -5]))
    names = {run.model_dump_json() for run in large}
    assert {run.model_dump_json() for run in small} < names
    # 9 models (the base counts once); the base's and two widths' init grids; -6 and -3 are the centre and shared.
    assert len(small) == 3 * (9 * 2 + 3 * 3)


def test_a_grid_is_a_slice_through_the_base_hyperparameters():
    demo = study()
    for hp, moved, fixed, value in (("log2_lr", "lr", "init_std", 1 / 16), ("log2_init_std", "init_std", "lr", 1 / 64)):
        curve = demo.curve("width", demo.base, "expertp", hp)
        assert [getattr(runs[0].hps, moved) for runs in curve] == [2.0**x for x in demo.grid(hp)]
        assert {getattr(run.hps, fixed) for runs in curve for run in runs} == {value}
        assert [run.train.seed for run in curve[0]] == [0, 1, 2]


def test_axes_scale_one_dimension_and_experts_keep_their_sparsity():
    demo = study()
    assert [(m.n_embd, m.n_layer) for m in demo.models("width").values()] == [(64, 2), (128, 2), (256, 2)]
    assert [(m.n_exp, m.n_act) for m in demo.models("experts").values()] == [(4, 1), (8, 2), (16, 4)]
    assert [(s, m.alpha_ffn) for s, m in demo.models("alpha").items()] == [(1, 1), (2, 2), (4, 4)]
    assert all(list(demo.models(axis)) == [1, 2, 4] for axis in demo.axis_names)


def test_the_base_belongs_to_an_axis_given_or_not():
    assert list(study(ALONE, "axes={depth: [8]}").models("depth")) == [1, 4]


def test_joint_sizes_multiply():
    joint = study(ALONE, "axes={}", "joint={both: {models: [{n_embd: 128, n_exp: 8, n_act: 2}]}}")
    (base, both) = joint.models("both").values()
    assert base == joint.base
    assert scale_of(both, base) == 4
    assert {run.model.n_exp for run in expand(joint)} == {4, 8}


def test_fixed_topk_needs_the_permission_that_its_runs_carry():
    allowed = study(ALONE, "axes={fixed_topk: [4, 8]}", "allow_kappa_change=true")
    assert [(m.n_exp, m.n_act) for m in allowed.models("fixed_topk").values()] == [(4, 1), (8, 1)]
    # Only those that need it carry it: what was trained before the control was added is still there.
    assert {(run.model.n_exp, run.allow_kappa_change) for run in expand(allowed)} == {(4, False), (8, True)}


def test_a_contrast_is_copied_to_every_size_and_swept_where_it_is_tuned():
    own = "contrasts={sp: {axes: [width], retune: {width: [64, 256]}, hps: {lr: 1/256}}}"
    runs = [run for run in expand(study(own)) if run.hps.rules == "sp"]
    lrs = {n_embd: {run.hps.lr for run in runs if run.model.n_embd == n_embd} for n_embd in (64, 128, 256)}
    assert lrs[128] == {1 / 256}
    assert lrs[64] == lrs[256] == {2.0**x for x in range(-9, -3)}
    assert {run.model.n_layer for run in runs} == {2}


def test_a_contrast_may_change_any_hyperparameter_and_its_runs_are_known_by_it():
    own = "contrasts={ones: {axes: [width], retune: {width: [64]}, hps: {constants: ones}}, sp: {axes: [width]}}"
    spec = study(own, "hps.constants=paper")
    assert (spec.hps_of("ones").constants, spec.hps_of("ones").rules) == ("ones", "expertp")
    assert spec.hps_of("sp").rules == "sp"
    found = {name: [run for run in expand(spec) if spec.contrast_of(run.hps) == name] for name in ("", "ones", "sp")}
    assert sum(map(len, found.values())) == len(expand(spec))
    assert {run.hps.constants for run in found["ones"]} == {"ones"}
    assert {run.hps.lr for run in found["ones"]} == {2.0**x for x in spec.grid("log2_lr")}
    assert {(run.hps.rules, run.hps.constants) for run in found[""]} == {("expertp", "paper")}


def test_contrasts_that_differ_in_a_swept_value_only_are_told_apart_where_they_can_be():
    spec = study("contrasts={low: {axes: [width], hps: {lr: 1/1024}}, high: {axes: [width], hps: {lr: 1/2}}}")
    assert spec.contrast_of(spec.hps_of("high")) == "high"
    assert spec.contrast_of(spec.hps_of("low")) == "low"
    assert spec.contrast_of(spec.hps) == ""


def test_a_refinement_adds_cells_to_one_curve_of_one_axis():
    plain, refined = study(ALONE), study(ALONE, "refinements=[{axis: depth, hp: log2_lr, values: [-3], seeds: [3]}]")
    assert refined.grid("log2_lr", "depth") == (*plain.grid("log2_lr"), -3)
    assert refined.grid("log2_lr", "width") == plain.grid("log2_lr")
    assert refined.seeds_of("depth", "log2_lr") == (0, 1, 2, 3)
    added = set(expand(refined)) - set(expand(plain))
    assert {run.model.n_embd for run in added} == {64}
    # At each depth a new learning rate with four seeds, and a new seed at the six others.
    assert len(added) == 3 * (4 + 6)


BAD = {
    "unknown axis": (["axes={widht: [64, 128]}", ALONE], "axes.widht: input should be 'width', 'depth'"),
    "empty grid": (["grids.log2_lr=[]"], "grids.log2_lr: is empty; give values"),
    "empty axis": (["axes={width: []}"], "axes.width.sizes: is empty; give values"),
    "no axis": (["axes={}", ALONE], "there is no axis; give axes"),
    "unsorted grid": (["grids.log2_lr=[-3, -4]"], "grids.log2_lr: is not increasing: -3, -4"),
    "kappa": (["axes={fixed_topk: [4, 8]}", ALONE], "fixed_topk changes n_act / n_exp from 1/4 to 1/8"),
    "kappa in joint": (["joint={both: {models: [{n_exp: 8}]}}"], "set allow_kappa_change: true"),
    "one seed": (["seeds=[0]"], "add seeds, or set verdict: null"),
    "seed twice": (["seeds=[0, 0, 1]"], "seeds has a value twice"),
    "negative lr": (["hps.lr=-1"], "hps.lr: input should be greater than 0, not -1"),
    "heads": (["axes={width: [64, 100]}"], "axes.width: n_embd=100 is not a multiple of d_head=32"),
    "half an expert": (["axes={experts: [6]}", ALONE], "of 6 experts 1.5 would be active"),
    "half a layer": (["axes={depth: [2, 2.5]}", ALONE], "axes.depth: 2.5 is not a whole number"),
    "contrast": (["contrasts={sp: {axes: [wdth]}}"], "no axis 'wdth'; did you mean 'width'?"),
    "retune": (["contrasts={sp: {axes: [width], retune: {width: [512]}}}"], "no size 512; it has 64, 128, 256"),
    "contrast of nothing": (["contrasts={ones: {axes: [width]}}"], "contrasts.ones changes nothing; give it hps"),
    "contrast's field": (["contrasts={x: {axes: [width], hps: {lrr: 1}}}"], "contrasts.x.hps: no 'lrr'; did you mean"),
    "contrast's value": (["contrasts={x: {axes: [width], hps: {lr: -1}}}"], "contrasts.x.hps: lr"),
    "refined axis": (["refinements=[{axis: wdth, hp: log2_lr}]"], "no axis 'wdth'; did you mean 'width'?"),
    "batch": (["train.batch_tokens=100"], "batch_tokens"),
    "enormous lr": (["grids.log2_lr=[-6, 2000]"], "grids.log2_lr"),
    "no validation": (["train.eval_every=0"], "a verdict needs validation losses"),
    "retuned elsewhere": (["contrasts={sp: {axes: [width], retune: {depth: [8]}}}"], "not among its axes"),
    "no init grid": (
        ["grids.log2_init_std=null", "axes={width: {sizes: [64, 128], sweep: [log2_init_std]}}", ALONE],
        "width sweeps log2_init_std only, and grids.log2_init_std is missing",
    ),
    "base twice": (["joint={big: {models: [{n_embd: 128, alpha_ffn: 0.5}]}}"], "two models have the same scale"),
    "own rules": (["contrasts={expertp: {axes: [width]}}"], "contrasts.expertp is the study's own rule set"),
    "joint name": (["joint={width: {models: [{n_embd: 128}]}}"], "joint.width has the name of an axis"),
    "joint twice": (["joint={big: {models: [{n_embd: 128}, {n_layer: 4}]}}"], "two models have the same scale"),
    "joint field": (["joint={big: {models: [{n_emb: 128}]}}"], "a size has no 'n_emb'; did you mean 'n_embd'?"),
    "hp": (["axes={width: {sizes: [64], sweep: [lr]}}"], "should be 'log2_lr' or 'log2_init_std', not 'lr'"),
    "verdict": (["verdict.drft=1"], "drft: unknown key; did you mean 'drift'?"),
    "override": (["axis.width=[64]"], "is not an override; did you mean axes.KEY=VALUE?"),
    "no key of a list": (["seeds.0=1"], "is not an override"),
    "one axis": (["axes.widht=[64, 128]"], "axes.widht"),
}


@pytest.mark.parametrize(("overrides", "message"), BAD.values(), ids=BAD)
def test_a_bad_study_is_one_line_that_says_what_to_do(overrides, message):
    with pytest.raises(InputError) as caught:
        study(*overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_axis_or_contrast_can_be_overridden():
    before = study()
    found = study("axes.width=[64, 256]", "contrasts.mup={axes: [width]}")
    assert found.axes["width"].sizes == (64, 256)
    assert {name: axis for name, axis in found.axes.items() if name != "width"} == {
        name: axis for name, axis in before.axes.items() if name != "width"
    }
    assert set(found.contrasts) == {*before.contrasts, "mup"}


def test_one_seed_is_enough_where_nothing_is_judged():
    assert study("seeds=[0]", "verdict=null").verdict is None
