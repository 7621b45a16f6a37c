"""expand(study) -> cells: every cell of a study with its labels, and the run that it needs.

    base model and its hyperparameters  ->  axes of larger models  ->  learning rates and init stds at each size

`expand` is pure: a study always means the same cells. A grid is a slice through the hyperparameters of the study file:
learning rates at its init std, and init stds at its learning rate. Cells without a hyperparameter are zero-shot: the
base's hyperparameters carried over as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from pydantic import ValidationError

from expertp.errors import InputError, did_you_mean
from expertp.spec import BaseHPs, Model, RuleSetName, RunSpec, TrainSpec
from expertp.study.spec import HP, HPS, AxisSpec, JointSpec, RefinementSpec, StudySpec

# Field of the base's hyperparameters that each grid sets.
HP_FIELD: Mapping[HP, str] = {"log2_lr": "lr", "log2_init_std": "init_std"}
# Field of the model that each axis changes.
AXIS_FIELD = {"width": "n_embd", "depth": "n_layer", "experts": "n_exp", "alpha": "alpha_ffn", "fixed_topk": "n_exp"}
# Scale of the base.
BASE_SCALE = 1.0
SIZE_FIELDS = ("n_embd", "n_layer", "n_exp", "n_act", "alpha_ffn")


@dataclass(frozen=True)
class Size:
    """One model on an axis.

    Args:
        model: the model.
        scale: the model's size relative to the base, m_N m_L m_E m_a.
        is_base: whether it is the base itself.
    """

    model: Model
    scale: float
    is_base: bool

    def value_on(self, axis: str) -> float:
        """Return the size in the unit of an axis, such as n_embd; the unit of a joint axis is the scale."""
        field = AXIS_FIELD.get(axis)
        return float(getattr(self.model, field)) if field else self.scale

    def label_on(self, axis: str) -> str:
        """Return the size as figures and tables write it."""
        return f"{self.value_on(axis):g}" if axis in AXIS_FIELD else f"{self.scale:.3g}×"


@dataclass(frozen=True)
class Arm:
    """A rule set and hyperparameters at the base that a study compares with others."""

    name: str
    hps: BaseHPs


@dataclass(frozen=True)
class Cell:
    """One point of a study. Several cells may need the same run.

    Args:
        axis: the axis.
        size: the model on it.
        arm: rule set and hyperparameters.
        hp: the hyperparameter that is swept; None: zero-shot.
        value: its value, log2; None: zero-shot.
        seed: seed of init and data order.
        run: what is trained.
    """

    axis: str
    size: Size
    arm: Arm
    hp: HP | None
    value: float | None
    seed: int
    run: RunSpec


def expand(study: StudySpec) -> tuple[Cell, ...]:
    """Return all cells of a study, axis by axis; an inconsistent study is an `InputError`.

    >>> from expertp.study.spec import AxisSpec, GridSpec
    >>> from expertp.spec import ModelSpec, TrainSpec
    >>> study = StudySpec(
    ...     name="example", base=ModelSpec(n_embd=64, n_layer=2, n_exp=4), hps=BaseHPs(lr=2**-7), seeds=(0, 1),
    ...     train=TrainSpec(data="tokens", steps=100, batch_tokens=1024),
    ...     axes={"width": AxisSpec(sizes=(64, 128))}, grids=GridSpec(log2_lr=(-8, -7, -6)))
    >>> cells = expand(study)
    >>> len(cells), len(unique_runs(cells))
    (16, 12)
    """
    _check_arms(study)
    for axis in axis_names(study):
        section = "axes" if axis in study.axes else "joint"
        _check_sizes(study, f"{section}.{axis}.sweep_at", axis, _axis(study, axis).sweep_at or ())
    for section, entries in (("refinements", study.refinements), ("chosen", study.chosen or ())):
        for entry in entries:
            if entry.axis not in (names := axis_names(study)):
                raise InputError(f"{section}: no axis '{entry.axis}'; {did_you_mean(entry.axis, names)}")
    try:
        return tuple(cell for axis in axis_names(study) for cell in _cells_on(study, axis))
    except ValidationError as error:
        raise InputError(_first_message(error)) from None


def unique_runs(cells: Iterable[Cell]) -> tuple[RunSpec, ...]:
    """Return the runs that cells need, each once, small models first."""
    runs = dict.fromkeys(cell.run for cell in cells)
    return tuple(sorted(runs, key=lambda run: run.model.flops_per_token()))


def axis_names(study: StudySpec) -> tuple[str, ...]:
    """Return the names of all axes, joint ones last, in the order of the file."""
    return (*study.axes, *study.joint)


def sizes(study: StudySpec, axis: str) -> tuple[Size, ...]:
    """Return the sizes of an axis by increasing scale, the base among them."""
    spec = _axis(study, axis)
    if isinstance(spec, JointSpec):
        made = [_changed(study.base, f"joint.{axis}", change) for change in spec.models]
    else:
        made = [_sized(study.base, axis, value) for value in spec.sizes]
    others = [model for model in made if model != study.base]
    by_scale = {scale_of(model, study.base): model for model in others}
    if len({BASE_SCALE, *by_scale}) <= len(others):
        raise InputError(f"joint.{axis}: two models have the same scale; a joint axis is one path of growing sizes")
    found = [Size(study.base, BASE_SCALE, True), *(Size(model, scale, False) for scale, model in by_scale.items())]
    return tuple(sorted(found, key=lambda size: size.scale))


def scale_of(model: Model, base: Model) -> float:
    """Return a model's size relative to the base: the product of its multipliers m_N m_L m_E m_a.

    >>> from expertp.spec import ModelSpec
    >>> base = ModelSpec(n_embd=64, n_layer=2, n_exp=4, n_act=1)
    >>> scale_of(base.replace(n_embd=128, n_exp=8, n_act=2), base)
    4.0
    """
    fields = ("n_embd", "n_layer", "n_exp", "alpha_ffn")
    return float(math.prod(getattr(model, field) / getattr(base, field) for field in fields))


def own_arm(study: StudySpec) -> Arm:
    """Return the arm of the study's own rule set and hyperparameters."""
    return Arm(study.hps.rules, study.hps)


def zero_shot_value(arm: Arm, hp: HP) -> float:
    """Return log2 of a hyperparameter in the zero-shot runs of an arm."""
    return math.log2(getattr(arm.hps, HP_FIELD[hp]))


def arms(study: StudySpec, axis: str | None = None) -> tuple[Arm, ...]:
    """Return all arms, or those of one axis; the study's own comes first."""
    named = [name for name, spec in study.arms.items() if axis is None or axis in spec.axes]
    return (own_arm(study), *(Arm(name, arm_hps(study, name)) for name in named))


def arm_hps(study: StudySpec, name: str) -> BaseHPs:
    """Return the hyperparameters of an arm, or of a rule set that is not an arm of the study, at the base."""
    if name == study.hps.rules:
        return study.hps
    rules = {"rules": name} if name in get_args(RuleSetName) else {}
    changes = study.arms[name].hps if name in study.arms else {}
    if rules and changes.get("rules", name) != name:
        raise InputError(f"arms.{name}.hps: rules={changes['rules']} in an arm named after other rules; rename it")
    for field in changes:
        if field not in BaseHPs.model_fields:
            raise InputError(f"arms.{name}.hps: no '{field}'; {did_you_mean(field, BaseHPs.model_fields)}")
    try:
        return study.hps.replace(**(rules | changes))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise InputError(f"arms.{name}.hps: {place}: {_first_message(error)}") from None


def swept_on(study: StudySpec, axis: str) -> tuple[HP, ...]:
    """Return the hyperparameters that the study's own arm sweeps on an axis."""
    return tuple(hp for hp in _axis(study, axis).sweep if getattr(study.grids, hp))


def grid(study: StudySpec, hp: HP, axis: str | None = None) -> tuple[float, ...]:
    """Return the values of a grid, with the refinements of an axis; empty for a hyperparameter that is not swept."""
    added = [value for each in _refinements(study, axis, hp) for value in each.values or ()]
    return tuple(sorted({*(getattr(study.grids, hp) or ()), *added}))


def run_of(study: StudySpec, model: Model, hps: BaseHPs, seed: int) -> RunSpec:
    """Return the run of a model with given hyperparameters at the base."""
    return RunSpec(
        base=study.base,
        model=model,
        hps=hps,
        train=_seeded(study.train, seed),
        parallel=study.parallel,
        allow_kappa_change=study.allow_kappa_change and model.kappa != study.base.kappa,
    )


@lru_cache(maxsize=64)
def _seeded(train: TrainSpec, seed: int) -> TrainSpec:
    """Return the section `train` of runs with a seed; many runs share one."""
    return train.replace(seed=seed)


def _cells_on(study: StudySpec, axis: str) -> Iterator[Cell]:
    if not swept_on(study, axis):
        raise InputError(f"{axis} sweeps log2_init_std only, and grids.log2_init_std is missing; give it values")
    is_whole = study.chosen is None or any(each.all_sizes for each in study.chosen if each.axis == axis)
    for size in sizes(study, axis) if is_whole else _judged_sizes(study, axis):
        if size.model.kappa != study.base.kappa and not study.allow_kappa_change:
            raise InputError(
                f"{axis} changes n_act / n_exp from {study.base.kappa} to {size.model.kappa}, and transfer is at fixed "
                "sparsity; set allow_kappa_change: true if the change is intended"
            )
        for arm in arms(study, axis):
            for seed in _zero_shot_seeds(study, axis):
                yield Cell(axis, size, arm, None, None, seed, run_of(study, size.model, arm.hps, seed))
            for hp in _swept(study, axis, size, arm):
                values, seeds = curve_cells(study, axis, hp)
                for value in values:
                    hps = arm.hps.replace(**{HP_FIELD[hp]: 2.0**value})
                    for seed in seeds:
                        yield Cell(axis, size, arm, hp, value, seed, run_of(study, size.model, hps, seed))


def _judged_sizes(study: StudySpec, axis: str) -> tuple[Size, ...]:
    """Return the base and the largest size at which the study's own arm is swept, or the largest of zero-shot runs."""
    found = sizes(study, axis)
    swept = [size for size in found if not size.is_base and _swept(study, axis, size, own_arm(study))]
    return tuple(dict.fromkeys((next(size for size in found if size.is_base), (swept or found)[-1])))


def _swept(study: StudySpec, axis: str, size: Size, arm: Arm) -> tuple[HP, ...]:
    """Return the hyperparameters that an arm sweeps at a size; arms other than the study's own sweep all or none."""
    if arm.name == study.hps.rules:
        at = _axis(study, axis).sweep_at
        is_swept = at is None or size.is_base or any(_is_same(size.value_on(axis), each) for each in at)
        return swept_on(study, axis) if is_swept else ()
    is_retuned = any(_is_same(size.value_on(axis), each) for each in study.arms[arm.name].retune.get(axis, ()))
    return tuple(hp for hp in HPS if is_retuned and getattr(study.grids, hp))


def looks_of(study: StudySpec, axis: str, hp: HP) -> int:
    """Return how often an adaptive sweep has looked at the curves of a hyperparameter along an axis; 0: never.

    A sweep of all cells that follows an adaptive one keeps the number, as a refinement.
    """
    found = study.refinements if study.chosen is None else study.chosen
    return max((each.looks for each in found if (each.axis, each.hp) == (axis, hp)), default=0)


def curve_cells(study: StudySpec, axis: str, hp: HP) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the values and seeds of the curves of a hyperparameter along an axis."""
    if study.chosen is None:
        added = [seed for each in _refinements(study, axis, hp) for seed in each.seeds]
        return grid(study, hp, axis), tuple(dict.fromkeys((*study.seeds, *added)))
    found = [each for each in study.chosen if (each.axis, each.hp) == (axis, hp)]
    return (found[0].values, found[0].seeds) if found else ((), ())


def _zero_shot_seeds(study: StudySpec, axis: str) -> tuple[int, ...]:
    """Return the seeds of zero-shot runs: those of the study, and those that an adaptive sweep has added."""
    added = [seed for hp in HPS for seed in curve_cells(study, axis, hp)[1]] if study.chosen is not None else []
    return tuple(dict.fromkeys((*study.seeds, *added)))


def _refinements(study: StudySpec, axis: str | None, hp: HP) -> list[RefinementSpec]:
    return [each for each in study.refinements if (each.axis, each.hp) == (axis, hp)]


def _axis(study: StudySpec, axis: str) -> AxisSpec | JointSpec:
    named: dict[str, AxisSpec | JointSpec] = {**study.joint}
    named.update(study.axes.items())
    return named[axis]


def _check_sizes(study: StudySpec, where: str, axis: str, values: Iterable[float]) -> None:
    """Refuse values that are not sizes of an axis."""
    known = [size.value_on(axis) for size in sizes(study, axis)]
    for value in values:
        if not any(_is_same(value, each) for each in known):
            listed = ", ".join(f"{each:g}" for each in known)
            raise InputError(f"{where}: no size {value:g}; the axis has {listed}")


def _check_arms(study: StudySpec) -> None:
    for name, spec in study.arms.items():
        if name == study.hps.rules:
            raise InputError(f"arms.{name} is the study's own rule set; choose another")
        if arm_hps(study, name) == study.hps:
            hint = did_you_mean(name, get_args(RuleSetName))
            raise InputError(f"arms.{name} changes nothing; give it hps, or the name of a rule set: {hint}")
        for axis in (*spec.axes, *spec.retune, *spec.control):
            if axis not in (names := axis_names(study)):
                raise InputError(f"arms.{name}: no axis '{axis}'; {did_you_mean(axis, names)}")
        for section, named in (("retune", spec.retune), ("control", spec.control)):
            if other := [axis for axis in named if axis not in spec.axes]:
                raise InputError(f"arms.{name}.{section}: {other[0]} is not among the arm's axes; add it there")
        for axis, values in spec.retune.items():
            _check_sizes(study, f"arms.{name}.retune.{axis}", axis, values)


def _is_same(one: float, other: float) -> bool:
    """Return whether two sizes agree to the digits that messages show: the scale 8/3 may be written 2.66667."""
    return math.isclose(one, other, rel_tol=1e-5)


def _sized(base: Model, axis: str, size: float) -> Model:
    """Return the base with another value along an axis."""
    where = f"axes.{axis}"
    if axis == "alpha":
        return _changed(base, where, {"alpha_ffn": size})
    if not float(size).is_integer():
        raise InputError(f"{where}: {size:g} is not a whole number")
    if axis == "experts":
        n_act = size * base.n_act / base.n_exp
        if not n_act.is_integer():
            raise InputError(
                f"{where}: {size:g} experts would have {n_act:g} active at n_act / n_exp = {base.n_act}/{base.n_exp}; "
                f"use multiples of {base.n_exp // math.gcd(base.n_exp, base.n_act)}"
            )
        return _changed(base, where, {"n_exp": int(size), "n_act": int(n_act)})
    return _changed(base, where, {AXIS_FIELD[axis]: int(size)})


def _changed(base: Model, where: str, change: Mapping[str, float]) -> Model:
    for field in change:
        if field not in SIZE_FIELDS:
            raise InputError(f"{where}: a size has no '{field}'; {did_you_mean(field, SIZE_FIELDS)}")
    try:
        return base.grown(**change)
    except ValidationError as error:
        raise InputError(f"{where}: {_first_message(error)}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _first_message(error: ValidationError) -> str:
    return error.errors()[0]["msg"].removeprefix("Value error, ")
