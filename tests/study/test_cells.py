from pathlib import Path

import pytest

from expertp.errors import InputError
from expertp.study.cells import (
    Arm,
    arm_hps,
    arms,
    axis_names,
    expand,
    grid,
    own_arm,
    scale_of,
    sizes,
    swept_on,
    unique_runs,
)
from expertp.study.load import build_study, load_study
from expertp.study.spec import HP

EXAMPLE = Path(__file__).parents[1] / "fixtures/study.yaml"
ALONE = "arms={}"


def study(*overrides):
    return load_study(EXAMPLE, overrides)


def runs_of(*overrides):
    return unique_runs(expand(study(*overrides)))


def where(cells, **labels):
    return [cell for cell in cells if all(getattr(cell, name) == value for name, value in labels.items())]


def models(spec, axis):
    return {size.scale: size.model for size in sizes(spec, axis)}


@pytest.mark.heavy
def test_the_example_expands_to_each_cell_and_each_run_once():
    cells = expand(study())
    assert expand(study()) == cells
    labels = {(cell.axis, cell.size, cell.arm.name, cell.hp, cell.value, cell.seed) for cell in cells}
    assert len(labels) == len(cells) == 357
    runs = unique_runs(cells)
    assert len({run.model_dump_json() for run in runs}) == len(runs) == 246
    flops = [run.model.flops_per_token() for run in runs]
    assert flops == sorted(flops)


def test_the_run_of_a_cell_has_what_its_labels_say():
    spec = study()
    field: dict[HP, str] = {"log2_lr": "lr", "log2_init_std": "init_std"}
    for cell in expand(spec):
        assert cell.run.base == spec.base
        assert cell.run.model == cell.size.model
        assert cell.run.train == spec.train.replace(seed=cell.seed)
        assert (cell.hp is None) == (cell.value is None)
        changes = {} if cell.hp is None else {field[cell.hp]: 2.0**cell.value}
        assert cell.run.hps == cell.arm.hps.replace(**changes)


def test_cells_of_several_axes_and_grids_share_one_run():
    spec = study(ALONE)
    cells = expand(spec)
    centre = next(cell.run for cell in cells if cell.size.is_base and cell.hp is None and cell.seed == 0)
    shared = where(cells, run=centre)
    zero_shot = {(axis, None) for axis in axis_names(spec)}
    swept = {(axis, hp) for axis in axis_names(spec) for hp in swept_on(spec, axis)}
    # The base with its own hyperparameters is on every axis, zero-shot and as a point of each grid.
    assert {(cell.axis, cell.hp) for cell in shared} == zero_shot | swept
    assert len(shared) == 4 + 5
    assert len({cell.size for cell in shared}) == 1


def test_the_centre_of_a_grid_off_its_values_is_a_run_of_its_own():
    on, off = (where(expand(study(ALONE, f"hps.lr={lr}")), axis="depth", seed=0) for lr in ("1/64", "0.01"))
    assert len({cell.run for cell in on}) == 3 * 6
    assert len({cell.run for cell in off}) == 3 * 7
    assert {cell.run.hps.lr for cell in where(off, hp=None)} == {0.01}


def test_a_study_of_one_axis_and_one_size_is_the_base_alone():
    spec = study(ALONE, "axes={width: {sizes: [64], sweep: [log2_lr]}}")
    (size,) = sizes(spec, "width")
    assert (size.model, size.scale, size.is_base) == (spec.base, 1, True)
    assert len(expand(spec)) == 3 * (1 + 6)


def test_a_larger_grid_keeps_the_runs_of_a_smaller_one():
    small, large = (runs_of(ALONE, f"grids.log2_lr={values}") for values in ([-7, -6], [-8, -7, -6, -5]))
    assert set(small) < set(large)
    # 9 models (the base counts once); the base's and two widths' init grids; -6 and -3 are the centre and shared.
    assert len(small) == 3 * (9 * 2 + 3 * 3)


def test_a_grid_is_a_slice_through_the_base_hyperparameters():
    spec = study()
    base = next(size for size in sizes(spec, "width") if size.is_base)
    for hp, moved, fixed, value in (("log2_lr", "lr", "init_std", 1 / 16), ("log2_init_std", "init_std", "lr", 1 / 64)):
        curve = where(expand(spec), axis="width", size=base, arm=own_arm(spec), hp=hp)
        assert list(dict.fromkeys(cell.value for cell in curve)) == list(grid(spec, hp))
        assert [getattr(cell.run.hps, moved) for cell in where(curve, seed=0)] == [2.0**x for x in grid(spec, hp)]
        assert {getattr(cell.run.hps, fixed) for cell in curve} == {value}
        assert [cell.seed for cell in curve[:3]] == [0, 1, 2]


def test_axes_scale_one_dimension_and_experts_keep_their_sparsity():
    spec = study()
    assert [(m.n_embd, m.n_layer) for m in models(spec, "width").values()] == [(64, 2), (128, 2), (256, 2)]
    assert [(m.n_exp, m.n_act) for m in models(spec, "experts").values()] == [(4, 1), (8, 2), (16, 4)]
    assert [(s, m.alpha_ffn) for s, m in models(spec, "alpha").items()] == [(1, 1), (2, 2), (4, 4)]
    assert all(list(models(spec, axis)) == [1, 2, 4] for axis in axis_names(spec))


@pytest.mark.parametrize("given", [[8], [2, 8], [1, 8]])
def test_the_base_belongs_to_an_axis_given_or_not(given):
    on_axis = sizes(study(ALONE, f"axes={{depth: {given}}}"), "depth")
    assert [size.scale for size in on_axis] == sorted({1, *(value / 2 for value in given)})
    assert [size.model.n_layer for size in on_axis if size.is_base] == [2]


def test_a_size_is_written_in_the_unit_of_its_axis():
    spec = study(ALONE, "joint={both: {models: [{n_embd: 128, n_exp: 8, n_act: 2}]}}")
    assert [(size.value_on("width"), size.label_on("width")) for size in sizes(spec, "width")][1] == (128, "128")
    assert [(size.value_on("both"), size.label_on("both")) for size in sizes(spec, "both")] == [(1, "1×"), (4, "4×")]


def test_joint_sizes_multiply():
    joint = study(ALONE, "axes={}", "joint={both: {models: [{n_embd: 128, n_exp: 8, n_act: 2}]}}")
    base, both = sizes(joint, "both")
    assert (base.model, base.is_base, both.is_base) == (joint.base, True, False)
    assert both.scale == scale_of(both.model, joint.base) == 4
    assert {run.model.n_exp for run in unique_runs(expand(joint))} == {4, 8}


def test_joint_axes_come_after_the_others():
    assert axis_names(study("joint={both: {models: [{n_embd: 128}]}}")) == (
        "width",
        "depth",
        "experts",
        "alpha",
        "both",
    )


def test_an_arm_on_a_joint_axis_is_re_tuned_by_scale():
    joint = "joint={both: {models: [{n_embd: 128, n_layer: 4}, {n_embd: 256, n_layer: 8}]}}"
    spec = study(joint, "arms={sp: {axes: [both], retune: {both: [1, 16]}}}")
    cells = [cell for cell in expand(spec) if cell.arm.name == "sp"]
    assert {cell.axis for cell in cells} == {"both"}
    assert {cell.size.scale for cell in where(cells, hp=None)} == {1, 4, 16}
    assert {cell.size.scale for cell in where(cells, hp="log2_lr")} == {1, 16}


def test_fixed_topk_needs_the_permission_that_its_runs_carry():
    allowed = study(ALONE, "axes={fixed_topk: [4, 8]}", "allow_kappa_change=true")
    assert [(m.n_exp, m.n_act) for m in models(allowed, "fixed_topk").values()] == [(4, 1), (8, 1)]
    # Only those that need it carry it: what was trained before the control was added is still there.
    runs = unique_runs(expand(allowed))
    assert {(run.model.n_exp, run.allow_kappa_change) for run in runs} == {(4, False), (8, True)}


def test_an_arm_is_carried_over_to_every_size_and_swept_where_it_is_re_tuned():
    spec = study("arms={sp: {axes: [width], retune: {width: [64, 256]}, hps: {lr: 1/256}}}")
    cells = where(expand(spec), arm=Arm("sp", arm_hps(spec, "sp")))
    lrs = {n: {cell.run.hps.lr for cell in cells if cell.size.model.n_embd == n} for n in (64, 128, 256)}
    assert lrs[128] == {1 / 256}
    assert lrs[64] == lrs[256] == {2.0**x for x in range(-9, -3)}
    assert {cell.run.hps.rules for cell in cells} == {"sp"}
    assert {cell.run.model.n_layer for cell in cells} == {2}
    assert {cell.axis for cell in cells} == {"width"}


def test_a_re_tuned_arm_sweeps_all_grids_also_where_the_studys_own_sweeps_one():
    spec = study("arms={sp: {axes: [depth], retune: {depth: [2, 8]}}}")
    on_depth = where(expand(spec), axis="depth")
    assert {cell.hp for cell in on_depth if cell.arm == own_arm(spec)} == {None, "log2_lr"}
    assert {cell.hp for cell in on_depth if cell.arm.name == "sp"} == {None, "log2_lr", "log2_init_std"}


def test_an_arm_may_change_any_hyperparameter_and_its_cells_have_its_name():
    own = "arms={ones: {axes: [width], retune: {width: [64]}, hps: {constants: ones}}, sp: {axes: [width]}}"
    spec = study(own, "hps.constants=paper")
    assert [arm.name for arm in arms(spec)] == ["expertp", "ones", "sp"]
    assert (arm_hps(spec, "ones").constants, arm_hps(spec, "ones").rules) == ("ones", "expertp")
    assert arm_hps(spec, "sp").rules == "sp"
    cells = expand(spec)
    by_arm = {arm.name: [cell.run.hps for cell in where(cells, arm=arm)] for arm in arms(spec)}
    assert sum(map(len, by_arm.values())) == len(cells)
    assert {hps.constants for hps in by_arm["ones"]} == {"ones"}
    assert {hps.lr for hps in by_arm["ones"]} == {2.0**x for x in grid(spec, "log2_lr")}
    assert {(hps.rules, hps.constants) for hps in by_arm["expertp"]} == {("expertp", "paper")}


def test_an_arm_is_only_on_its_axes_and_the_studys_own_comes_first():
    spec = study("arms={sp: {axes: [width]}, mup: {axes: [depth, width]}}")
    assert [arm.name for arm in arms(spec, "width")] == ["expertp", "sp", "mup"]
    assert [arm.name for arm in arms(spec, "depth")] == ["expertp", "mup"]
    assert arms(spec, "alpha") == (own_arm(spec),)


@pytest.mark.heavy
def test_arms_that_differ_in_a_swept_value_share_runs_and_keep_their_labels():
    spec = study("arms={low: {axes: [width], hps: {lr: 1/512}}, high: {axes: [width], hps: {lr: 1/2}}}")
    cells = where(expand(spec), axis="width", seed=0)
    (low,) = [cell for cell in cells if cell.arm.name == "low" and cell.size.is_base]
    # It is the point -9 of the study's own grid.
    assert [(cell.arm.name, cell.hp, cell.value) for cell in where(cells, run=low.run)] == [
        ("expertp", "log2_lr", -9), ("low", None, None)
    ]  # fmt: skip
    (high,) = [cell for cell in cells if cell.arm.name == "high" and cell.size.is_base]
    assert [cell.arm.name for cell in where(cells, run=high.run)] == ["high"]
    assert len(runs_of("arms={low: {axes: [width], hps: {lr: 1/512}}}")) == len(runs_of(ALONE))


def test_contrasts_is_the_earlier_name_of_arms():
    tree = study().to_dict()
    earlier = {"contrasts" if name == "arms" else name: value for name, value in tree.items()}
    assert build_study(earlier, "study:") == study()
    with pytest.raises(InputError, match="'contrasts' is an earlier name of 'arms'"):
        build_study({**tree, "contrasts": {}}, "study:")


@pytest.mark.heavy
def test_a_refinement_adds_cells_to_one_curve_of_one_axis():
    plain, refined = study(ALONE), study(ALONE, "refinements=[{axis: depth, hp: log2_lr, values: [-3], seeds: [3]}]")
    assert grid(refined, "log2_lr", "depth") == (*grid(plain, "log2_lr"), -3)
    assert grid(refined, "log2_lr", "width") == grid(plain, "log2_lr")
    cells = set(expand(refined)) - set(expand(plain))
    assert {(cell.axis, cell.hp) for cell in cells} == {("depth", "log2_lr")}
    added = set(unique_runs(expand(refined))) - set(unique_runs(expand(plain)))
    assert {run.model.n_embd for run in added} == {64}
    # At each depth a new learning rate with four seeds, and a new seed at the six others.
    assert len(added) == len(cells) == 3 * (4 + 6)
    assert {cell.seed for cell in where(expand(refined), axis="depth", hp="log2_lr", value=-9)} == {0, 1, 2, 3}
    assert {cell.seed for cell in where(expand(refined), axis="depth", hp=None)} == {0, 1, 2}


def test_a_refinement_reaches_every_arm_that_sweeps_the_curve():
    refined = study("refinements=[{axis: width, hp: log2_lr, values: [-3], seeds: [2, 3]}]")
    for cells in (where(expand(refined), axis="width", arm=arm, hp="log2_lr") for arm in arms(refined)):
        assert {cell.value for cell in cells} == {*range(-9, -2)}
        assert {cell.seed for cell in cells} == {0, 1, 2, 3}


def test_refinements_of_one_curve_add_up():
    twice = "refinements=[{axis: depth, hp: log2_lr, values: [-3]}, {axis: depth, hp: log2_lr, values: [-3, -2]}]"
    spec = study(ALONE, twice)
    assert grid(spec, "log2_lr", "depth")[-3:] == (-4, -3, -2)


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
    "half an expert": (["axes={experts: [6]}", ALONE], "6 experts would have 1.5 active"),
    "half a layer": (["axes={depth: [2, 2.5]}", ALONE], "axes.depth: 2.5 is not a whole number"),
    "arm": (["arms={sp: {axes: [wdth]}}"], "no axis 'wdth'; did you mean 'width'?"),
    "retune": (["arms={sp: {axes: [width], retune: {width: [512]}}}"], "no size 512; the axis has 64, 128, 256"),
    "arm of nothing": (["arms={ones: {axes: [width]}}"], "arms.ones changes nothing; give it hps"),
    "arm's field": (["arms={x: {axes: [width], hps: {lrr: 1}}}"], "arms.x.hps: no 'lrr'; did you mean"),
    "arm's value": (["arms={x: {axes: [width], hps: {lr: -1}}}"], "arms.x.hps: lr"),
    "refined axis": (["refinements=[{axis: wdth, hp: log2_lr}]"], "no axis 'wdth'; did you mean 'width'?"),
    "batch": (["train.batch_tokens=100"], "batch_tokens"),
    "enormous lr": (["grids.log2_lr=[-6, 2000]"], "grids.log2_lr"),
    "no validation": (["train.eval_every=0"], "a verdict needs validation losses"),
    "retuned elsewhere": (
        ["arms={sp: {axes: [width], retune: {depth: [8]}}}"],
        "arms.sp.retune: depth is not among the arm's axes",
    ),
    "no init grid": (
        ["grids.log2_init_std=null", "axes={width: {sizes: [64, 128], sweep: [log2_init_std]}}", ALONE],
        "width sweeps log2_init_std only, and grids.log2_init_std is missing",
    ),
    "base twice": (["joint={big: {models: [{n_embd: 128, alpha_ffn: 0.5}]}}"], "two models have the same scale"),
    "own rules": (["arms={expertp: {axes: [width]}}"], "arms.expertp is the study's own rule set"),
    "joint name": (["joint={width: {models: [{n_embd: 128}]}}"], "joint.width has the name of an axis"),
    "joint twice": (["joint={big: {models: [{n_embd: 128}, {n_layer: 4}]}}"], "two models have the same scale"),
    "joint field": (["joint={big: {models: [{n_emb: 128}]}}"], "a size has no 'n_emb'; did you mean 'n_embd'?"),
    "hp": (["axes={width: {sizes: [64], sweep: [lr]}}"], "should be 'log2_lr' or 'log2_init_std', not 'lr'"),
    "verdict": (["verdict.nts=1"], "nts: unknown key; did you mean 'nats'?"),
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


def test_one_axis_or_arm_can_be_overridden():
    before = study()
    found = study("axes.width=[64, 256]", "arms.mup={axes: [width]}")
    assert found.axes["width"].sizes == (64, 256)
    assert {name: axis for name, axis in found.axes.items() if name != "width"} == {
        name: axis for name, axis in before.axes.items() if name != "width"
    }
    assert set(found.arms) == {*before.arms, "mup"}


def test_one_seed_is_enough_where_nothing_is_judged():
    assert study("seeds=[0]", "verdict=null").verdict is None
