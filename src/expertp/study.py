"""A transfer study: which models to train over which hyperparameters and seeds, and when transfer counts as shown.

    base model and its hyperparameters  ->  axes of larger models  ->  learning rates and init stds at each size

`expand` is pure: a study always means the same runs. A grid is a slice through the hyperparameters of the study file:
learning rates at their init std, and init stds at their learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from expertp.errors import did_you_mean
from expertp.spec import BaseHPs, Finite, ModelSpec, Ratio, RuleSetName, RunSpec, Spec, TrainSpec

HP = Literal["log2_lr", "log2_init_std"]
HPS: tuple[HP, ...] = ("log2_lr", "log2_init_std")
# Which field of the base's hyperparameters a grid moves.
FIELD_OF: dict[HP, str] = {"log2_lr": "lr", "log2_init_std": "init_std"}
AxisName = Literal["width", "depth", "experts", "alpha", "fixed_topk"]
SIZE_FIELD = {"width": "n_embd", "depth": "n_layer", "experts": "n_exp", "alpha": "alpha_ffn"}
SIZE_FIELDS = ("n_embd", "n_layer", "n_exp", "n_act", "alpha_ffn")


def _in_order(values: object) -> object:
    """Refuse what is not an increasing list of numbers before pydantic looks at each of them."""
    if isinstance(values, (list, tuple)):
        if not values:
            raise ValueError("is empty; give values, such as [-8, -7, -6]")
        numbers = [value for value in values if isinstance(value, (int, float))]
        if sorted(set(numbers)) != numbers:
            raise ValueError(f"is not increasing: {', '.join(map(str, values))}; sort it, and give each value once")
    return values


Exponent = Annotated[Finite, Field(ge=-60, le=60)]
Grid = Annotated[tuple[Exponent, ...], BeforeValidator(_in_order)]
Sizes = Annotated[tuple[Ratio, ...], BeforeValidator(_in_order)]


class AxisSpec(Spec):
    """Models that differ from the base in one dimension; `[64, 128]` is short for `{sizes: [64, 128]}`."""

    sizes: Sizes = Field(description="values of the axis; the base's own belongs to it, given or not")
    sweep: tuple[HP, ...] = Field(HPS, min_length=1, description="which grids are swept at each size")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"sizes": data} if isinstance(data, (list, tuple)) else data


class JointSpec(Spec):
    """Models that differ from the base in several dimensions at once."""

    models: tuple[dict[str, Ratio], ...] = Field(min_length=1, description="changes to the base, one mapping a size")
    sweep: tuple[HP, ...] = Field(HPS, min_length=1, description="which grids are swept at each size")


class ContrastSpec(Spec):
    """Another rule set or other hyperparameters beside the study's own.

    What it changes belongs to the base, such as its own optimum there. It is copied to every size of its axes
    (zero-shot), and the grids are swept at the sizes that `retune` names; the base is one of them where the contrast
    must show its optimum.
    """

    axes: tuple[str, ...] = Field(min_length=1, description="where it is trained")
    retune: dict[str, Sizes] = Field(default_factory=dict, description="axis -> sizes at which grids are swept anew")
    hps: dict[str, Any] = Field(
        default_factory=dict,
        description="what differs in the base's hyperparameters, such as {lr: 1/128, constants: ones}; a contrast with "
        "the name of a rule set has its rules",
    )


class GridSpec(Spec):
    """Values of the two hyperparameters at the base, as powers of two."""

    log2_lr: Grid = Field(description="learning rates, log2")
    log2_init_std: Grid | None = Field(None, description="init stds, log2; null: init is not swept")


class RefinementSpec(Spec):
    """Cells beside the grids that settle one axis; `expertp sweep --refine` adds them where they are needed."""

    axis: str = Field(description="where they are added")
    hp: HP = Field(description="to which curve")
    values: Grid | None = Field(None, description="added to the grid of `hp` on this axis, log2")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="added to the seeds of this curve")
    why: str = Field("", description="what made it necessary")


class VerdictSpec(Spec):
    """When transfer counts as shown."""

    drift: Finite = Field(0.25, gt=0, description="octaves of the optimum per doubling that are allowed")
    excess_nats: Finite = Field(0.01, gt=0, description="zero-shot excess loss that is allowed")
    excess_sds: Finite = Field(2.0, gt=0, description="the same in standard deviations over seeds; the larger counts")


class StudySpec(Spec):
    """What must exist for a study; a study file has these sections."""

    name: str = Field(min_length=1, description="how the report calls it")
    base: ModelSpec = Field(description="the model that was tuned; every axis starts from it")
    hps: BaseHPs = Field(description="its hyperparameters: the centre of the grids")
    train: TrainSpec = Field(description="data, batch and horizon of every run; its seed is not used")
    axes: dict[AxisName, AxisSpec] = Field(
        default_factory=dict,
        description="`width` (n_embd), `depth` (n_layer), `experts` (n_exp at the base's n_act / n_exp), `alpha` "
        "(alpha_ffn), `fixed_topk` (n_exp at the base's n_act: the negative control)",
    )
    joint: dict[str, JointSpec] = Field(default_factory=dict, description="scalings of several dimensions, by name")
    grids: GridSpec = Field(description="learning rates and init stds")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0, 1, 2), min_length=1, description="init and data order")
    contrasts: dict[str, ContrastSpec] = Field(
        default_factory=dict, description="other rule sets, or other hyperparameters, beside it, by name"
    )
    verdict: VerdictSpec | None = Field(default_factory=VerdictSpec, description="thresholds; null: nothing is judged")
    refinements: tuple[RefinementSpec, ...] = Field((), description="further cells, axis by axis")
    allow_kappa_change: bool = Field(False, description="needed by fixed_topk, and by joint sizes of another sparsity")
    keep_checkpoints: bool = Field(False, description="leave the last checkpoints of runs that have ended")

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.verdict is not None and len(set(self.seeds)) < 2:
            raise ValueError("seeds has one value, and an interval needs at least 2; add seeds, or set verdict: null")
        if self.verdict is not None and not self.train.eval_every:
            raise ValueError("a verdict needs validation losses; set train.eval_every, or verdict: null")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds has a value twice: {list(self.seeds)}; give each once")
        if not (self.axes or self.joint):
            raise ValueError("there is no axis; give axes, such as {width: [64, 128, 256]}")
        clash = sorted(set(self.joint) & set(get_args(AxisName)))
        if clash:
            raise ValueError(f"joint.{clash[0]} has the name of an axis; call it otherwise")
        for rules, contrast in self.contrasts.items():
            if rules == self.hps.rules:
                raise ValueError(f"contrasts.{rules} is the study's own rule set; name another")
            if self._contrast_hps(rules) == self.hps:
                raise ValueError(
                    f"contrasts.{rules} changes nothing; give it hps, or the name of a rule set: "
                    f"{did_you_mean(rules, get_args(RuleSetName))}"
                )
            for axis in (*contrast.axes, *contrast.retune):
                if axis not in self.axis_names:
                    raise ValueError(f"contrasts.{rules}: no axis '{axis}'; {did_you_mean(axis, self.axis_names)}")
            for axis, sizes in contrast.retune.items():
                if axis not in contrast.axes:
                    raise ValueError(f"contrasts.{rules}.retune.{axis}: not among its axes; add it there")
                known = [self.size_of(axis, model) for model in self.models(axis).values()]
                for size in set(sizes) - set(known):
                    sizes_there = ", ".join(f"{each:g}" for each in known)
                    raise ValueError(f"contrasts.{rules}.retune.{axis}: no size {size:g}; it has {sizes_there}")
        for each in self.refinements:
            if each.axis not in self.axis_names:
                raise ValueError(f"refinements: no axis '{each.axis}'; {did_you_mean(each.axis, self.axis_names)}")
        for axis in self.axis_names:
            for model in self.models(axis).values():
                if model.kappa != self.base.kappa and not self.allow_kappa_change:
                    raise ValueError(
                        f"{axis} changes n_act / n_exp from {self.base.kappa} to {model.kappa}, and transfer is at "
                        "fixed sparsity; set allow_kappa_change: true if the change is the point"
                    )
            if not self.sweep(axis):
                raise ValueError(
                    f"{axis} sweeps log2_init_std only, and grids.log2_init_std is missing; give it values"
                )
        try:
            expand(self)
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        return self

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Axes and joint scalings, in the order of the file."""
        return tuple(self._scalings)

    @property
    def _scalings(self) -> dict[str, AxisSpec | JointSpec]:
        named: dict[str, AxisSpec | JointSpec] = {}
        named.update(self.axes.items())
        named.update(self.joint.items())
        return named

    def sweep(self, axis: str) -> tuple[HP, ...]:
        """Return the hyperparameters that are swept on an axis."""
        return tuple(hp for hp in self._scalings[axis].sweep if self.grid(hp))

    def swept(self, axis: str, model: ModelSpec, rules: str) -> tuple[HP, ...]:
        """Return the hyperparameters that are swept at a model: a contrast is tuned anew in full, or not at all."""
        if rules == self.hps.rules:
            return self.sweep(axis)
        contrast = self.contrasts.get(rules)
        if contrast is None or axis not in contrast.axes:
            return ()
        is_retuned = self.size_of(axis, model) in contrast.retune.get(axis, ())
        return tuple(hp for hp in HPS if is_retuned and self.grid(hp))

    def grid(self, hp: HP, axis: str | None = None) -> tuple[float, ...]:
        """Return the values of a grid, with what was added on an axis; none where it is not swept."""
        values = getattr(self.grids, hp) or ()
        added = [value for each in self._refined(axis, hp) for value in each.values or ()]
        return tuple(sorted({*values, *added}))

    def seeds_of(self, axis: str, hp: HP) -> tuple[int, ...]:
        """Return the seeds of an axis's curves, with what was added."""
        added = [seed for each in self._refined(axis, hp) for seed in each.seeds]
        return tuple(dict.fromkeys((*self.seeds, *added)))

    def _refined(self, axis: str | None, hp: HP) -> list[RefinementSpec]:
        return [each for each in self.refinements if (each.axis, each.hp) == (axis, hp)]

    def size_of(self, axis: str, model: ModelSpec) -> float:
        """Return a model's size in the unit of an axis; the unit of a joint scaling is the scale itself."""
        if axis in self.joint:
            return scale_of(model, self.base)
        return float(getattr(model, SIZE_FIELD.get(axis, "n_exp")))

    def models(self, axis: str) -> dict[float, ModelSpec]:
        """Return an axis's models, the base among them, by their scale: how many times the base they are."""
        scaling = self._scalings[axis]
        if isinstance(scaling, JointSpec):
            made = [_changed_model(self.base, change, f"joint.{axis}") for change in scaling.models]
            others = [model for model in made if model != self.base]
            if len({1.0, *(scale_of(model, self.base) for model in others)}) <= len(others):
                raise ValueError(
                    f"joint.{axis}: two models have the same scale; a scaling is one path of growing sizes"
                )
        else:
            made = [_sized(self.base, axis, size) for size in scaling.sizes]
        by_scale = {scale_of(model, self.base): model for model in (self.base, *made)}
        return dict(sorted(by_scale.items()))

    def hps_of(self, rules: str) -> BaseHPs:
        """Return the base hyperparameters of the study's own rule set, of a contrast or of any other rule set."""
        return self.hps if rules == self.hps.rules else self._contrast_hps(rules)

    def contrast_of(self, hps: BaseHPs) -> str:
        """Return the contrast that a run belongs to, be its grids swept or not; nothing for the study's own runs."""
        wanted = dict(hps)
        swept = {field: wanted[field] for field in FIELD_OF.values()}
        names = [name for name, known in self._known_hps.items() if {**known, **swept} == wanted]
        name = next((name for name in names if self._known_hps[name] == wanted), names[0])
        return "" if name == self.hps.rules else name

    @cached_property
    def _known_hps(self) -> dict[str, dict[str, Any]]:
        return {name: dict(self.hps_of(name)) for name in (self.hps.rules, *self.contrasts)}

    def _contrast_hps(self, name: str) -> BaseHPs:
        rules = {"rules": name} if name in get_args(RuleSetName) else {}
        contrast = self.contrasts.get(name)
        changes = contrast.hps if contrast is not None else {}
        if rules and changes.get("rules", name) != name:
            raise ValueError(f"contrasts.{name}.hps: rules={changes['rules']} under the name of other rules; rename it")
        for field in changes:
            if field not in BaseHPs.model_fields:
                raise ValueError(f"contrasts.{name}.hps: no '{field}'; {did_you_mean(field, BaseHPs.model_fields)}")
        try:
            return self.hps.replace(**(rules | changes))
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"contrasts.{name}.hps: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def seeded(self, model: ModelSpec, hps: BaseHPs, seeds: tuple[int, ...] | None = None) -> tuple[RunSpec, ...]:
        """Return one run per seed."""
        return tuple(
            RunSpec(
                base=self.base,
                model=model,
                hps=hps,
                train=self.train.replace(seed=seed),
                allow_kappa_change=self.allow_kappa_change and model.kappa != self.base.kappa,
            )
            for seed in seeds or self.seeds
        )

    def centre(self, model: ModelSpec, rules: str) -> tuple[RunSpec, ...]:
        """Return the runs of a model with the base's hyperparameters as they are, one per seed."""
        return self.seeded(model, self.hps_of(rules))

    def curve(self, axis: str, model: ModelSpec, rules: str, hp: HP) -> tuple[tuple[RunSpec, ...], ...]:
        """Return the runs of a loss curve: per value of the axis's grid one run per seed."""
        hps, seeds = self.hps_of(rules), self.seeds_of(axis, hp)
        grid = self.grid(hp, axis)
        return tuple(self.seeded(model, hps.replace(**{FIELD_OF[hp]: 2.0**value}), seeds) for value in grid)


def expand(study: StudySpec) -> tuple[RunSpec, ...]:
    """Return all runs of a study, each once, small models first."""
    runs: dict[str, RunSpec] = {}
    for model_runs in _all_runs(study):
        for run in model_runs:
            runs.setdefault(run.model_dump_json(), run)
    return tuple(sorted(runs.values(), key=lambda run: run.model.flops_per_token()))


def _all_runs(study: StudySpec) -> Iterator[tuple[RunSpec, ...]]:
    for axis in study.axis_names:
        beside = [rules for rules, contrast in study.contrasts.items() if axis in contrast.axes]
        for model in study.models(axis).values():
            for rules in (study.hps.rules, *beside):
                yield study.centre(model, rules)
                for hp in study.swept(axis, model, rules):
                    yield from study.curve(axis, model, rules, hp)


def scale_of(model: ModelSpec, base: ModelSpec) -> float:
    """Return how many times the base a model is: the product of its multipliers m_N m_L m_E m_a.

    >>> base = ModelSpec(n_embd=64, n_layer=2, n_exp=4, n_act=1)
    >>> scale_of(base.replace(n_embd=128, n_exp=8, n_act=2), base)
    4.0
    """
    return float(math.prod(getattr(model, field) / getattr(base, field) for field in SIZE_FIELD.values()))


def _sized(base: ModelSpec, axis: str, size: float) -> ModelSpec:
    if axis == "alpha":
        return _replaced(base, "axes.alpha", alpha_ffn=size)
    if not float(size).is_integer():
        raise ValueError(f"axes.{axis}: {size:g} is not a whole number")
    if axis == "experts":
        n_act = size * base.n_act / base.n_exp
        if not n_act.is_integer():
            raise ValueError(
                f"axes.experts: of {size:g} experts {n_act:g} would be active at n_act / n_exp = "
                f"{base.n_act}/{base.n_exp}; take multiples of {base.n_exp // math.gcd(base.n_exp, base.n_act)}"
            )
        return _replaced(base, "axes.experts", n_exp=int(size), n_act=int(n_act))
    return _replaced(base, f"axes.{axis}", **{SIZE_FIELD.get(axis, "n_exp"): int(size)})


def _changed_model(base: ModelSpec, change: Mapping[str, float], where: str) -> ModelSpec:
    for field in change:
        if field not in SIZE_FIELDS:
            raise ValueError(f"{where}: a size has no '{field}'; {did_you_mean(field, SIZE_FIELDS)}")
    return _replaced(base, where, **change)


def _replaced(base: ModelSpec, where: str, **changes: float) -> ModelSpec:
    try:
        return base.replace(**changes)
    except ValidationError as error:
        raise ValueError(f"{where}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
