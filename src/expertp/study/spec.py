"""Contents of a study file: base, axes, grids, seeds, arms and thresholds. `cells.expand` derives the runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from expertp.spec import AnyModel, BaseHPs, Finite, Name, ParallelSpec, Ratio, Spec, TrackerName, TrainSpec

HP = Literal["log2_lr", "log2_init_std"]
HPS: tuple[HP, ...] = get_args(HP)
AxisName = Literal["width", "depth", "experts", "alpha", "fixed_topk"]


def _not_empty(values: object) -> object:
    """Refuse an empty list."""
    if isinstance(values, (list, tuple)) and not values:
        raise ValueError("is empty; give values, such as [-8, -7, -6]")
    return values


def _in_order(values: object) -> object:
    """Refuse a list that is not increasing, before pydantic validates its entries."""
    if isinstance(values, (list, tuple)):
        numbers = [value for value in values if isinstance(value, (int, float))]
        if sorted(set(numbers)) != numbers:
            raise ValueError(f"is not increasing: {', '.join(map(str, values))}; sort it, and give each value once")
    return values


Exponent = Annotated[Finite, Field(ge=-60, le=60)]
Grid = Annotated[tuple[Exponent, ...], BeforeValidator(_not_empty), BeforeValidator(_in_order)]
Sizes = Annotated[tuple[Ratio, ...], BeforeValidator(_not_empty), BeforeValidator(_in_order)]
SomeSizes = Annotated[tuple[Ratio, ...], BeforeValidator(_in_order)]
Seed = Annotated[int, Field(ge=0)]
Looks = Annotated[int, Field(ge=0, le=1000)]


class AxisSpec(Spec):
    """Models that differ from the base in one dimension; `[64, 128]` is short for `{sizes: [64, 128]}`."""

    sizes: Sizes = Field(description="values along the axis; the base's own value is always included")
    sweep: tuple[HP, ...] = Field(HPS, min_length=1, description="hyperparameters that are swept")
    sweep_at: SomeSizes | None = Field(
        None, description="sizes at which they are swept, beside the base; null: all, []: zero-shot runs only"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"sizes": data} if isinstance(data, (list, tuple)) else data


class JointSpec(Spec):
    """Models that differ from the base in several dimensions at once."""

    models: tuple[dict[str, Ratio], ...] = Field(min_length=1, description="changes to the base, one mapping per size")
    sweep: tuple[HP, ...] = Field(HPS, min_length=1, description="hyperparameters that are swept")
    sweep_at: SomeSizes | None = Field(None, description="the same for scales at which they are swept")


class ArmSpec(Spec):
    """Another rule set, or other hyperparameters, to compare with the study's own.

    `hps` are changes at the base, such as the arm's own optimum there. They are carried over to every size of the arm's
    axes (zero-shot). At the sizes in `retune` the grids are swept as well. Include the base in `retune` if the report
    should show the arm's optimum at the base.
    """

    axes: tuple[str, ...] = Field(min_length=1, description="axes on which the arm is trained")
    retune: dict[str, Sizes] = Field(default_factory=dict, description="axis -> sizes at which the grids are swept")
    hps: dict[str, Any] = Field(
        default_factory=dict,
        description="changes to the base's hyperparameters, such as {lr: 1/128, constants: ones}; an arm with the name "
        "of a rule set uses its rules",
    )
    control: tuple[str, ...] = Field(
        (), description="axes on which the arm should fail; where it does not, verdicts have NO POWER"
    )


class GridSpec(Spec):
    """Values of the two hyperparameters at the base, as powers of two."""

    log2_lr: Grid = Field(description="learning rates, log2")
    log2_init_std: Grid | None = Field(None, description="init stds, log2; null: init is not swept")


class RefinementSpec(Spec):
    """Extra grid values and seeds for the curves of one axis."""

    axis: str = Field(description="the axis")
    hp: HP = Field(description="the hyperparameter")
    values: Grid | None = Field(None, description="values added to the grid of `hp` on this axis, log2")
    seeds: tuple[Seed, ...] = Field((), description="seeds added to this curve")
    looks: Looks = Field(
        0, description="looks at the verdict in an adaptive sweep before all cells were trained, and the one after it"
    )
    why: str = Field("", description="why they were added")


class ChoiceSpec(Spec):
    """The cells of one curve that an adaptive sweep has chosen: all values with all seeds."""

    axis: str = Field(description="the axis")
    hp: HP = Field(description="the hyperparameter")
    values: Grid = Field(description="values that are trained, log2")
    seeds: tuple[Seed, ...] = Field(description="seeds that are trained")
    all_sizes: bool = Field(
        False, description="whether at all sizes, as after a sweep of all cells; else at the base and the largest size"
    )
    looks: Looks = Field(1, ge=1, description="how often the verdict was looked at, the next time included")
    why: str = Field("", description="why the last cells were chosen")
    before: ChoiceSpec | None = Field(
        None, description="the choice at the look before: the verdict's until the new cells have been trained"
    )


# Thresholds of the test of earlier versions, with their defaults.
EARLIER_THRESHOLDS: Mapping[str, float] = {"drift": 0.25, "excess_nats": 0.01, "excess_sds": 2.0}


class VerdictSpec(Spec):
    """What zero-shot may cost at a size; the larger tolerance applies."""

    earlier_fields: ClassVar[frozenset[str]] = frozenset(EARLIER_THRESHOLDS)

    nats: Finite = Field(0.005, gt=0, description="tolerance, nats")
    share: Finite = Field(0.1, gt=0, description="tolerance as a share of the loss that the size gains over the base")

    @model_validator(mode="before")
    @classmethod
    def _without_earlier_thresholds(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if changed := [key for key, default in EARLIER_THRESHOLDS.items() if data.get(key, default) != default]:
            warnings.warn(
                f"verdict.{changed[0]} belongs to the test of an earlier version and is ignored; set verdict.nats and "
                "verdict.share",
                stacklevel=2,
            )
        return {key: value for key, value in data.items() if key not in EARLIER_THRESHOLDS}


class StudySpec(Spec):
    """All that a study compares; a study file has these sections."""

    earlier_names: ClassVar[Mapping[str, str]] = {"contrasts": "arms"}

    name: Name = Field(description="name of the study in reports")
    base: AnyModel = Field(description="the model that was tuned; every axis starts from it")
    hps: BaseHPs = Field(description="hyperparameters of the base: the centre of the grids")
    train: TrainSpec = Field(description="data, batch and horizon of every run; its seed is not used")
    axes: dict[AxisName, AxisSpec] = Field(
        default_factory=dict,
        description="`width` (n_embd), `depth` (n_layer), `experts` (n_exp at the base's n_act / n_exp), `alpha` "
        "(alpha_ffn), `fixed_topk` (n_exp at the base's n_act: the negative control)",
    )
    joint: dict[Name, JointSpec] = Field(default_factory=dict, description="axes along several dimensions, by name")
    grids: GridSpec = Field(description="learning rates and init stds")
    seeds: tuple[Seed, ...] = Field((0, 1, 2), min_length=1, description="seeds of init and data order")
    arms: dict[Name, ArmSpec] = Field(
        default_factory=dict, description="other rule sets or hyperparameters to compare with, by name"
    )
    verdict: VerdictSpec | None = Field(default_factory=VerdictSpec, description="tolerance; null: no verdict")
    refinements: tuple[RefinementSpec, ...] = Field((), description="extra values and seeds, axis by axis")
    chosen: tuple[ChoiceSpec, ...] | None = Field(
        None, description="cells that `expertp sweep --until decided` has chosen; null: all"
    )
    allow_kappa_change: bool = Field(False, description="needed by fixed_topk, and by joint sizes of another sparsity")
    keep_checkpoints: bool = Field(False, description="keep the last checkpoints of runs that have ended")
    trackers: tuple[TrackerName, ...] = Field((), description="programs that get the metrics of every run, too")
    processes: int = Field(1, gt=0, description="processes of one machine that train a run together")
    parallel: ParallelSpec = Field(ParallelSpec(), description="how they share its model; the same as in a run file")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
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
            raise ValueError(f"joint.{clash[0]} has the name of an axis; choose another name")
        return self
