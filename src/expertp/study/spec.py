"""Contents of a study file: base, axes, grids, seeds, arms and thresholds. `cells.expand` derives the runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from expertp.spec import BaseHPs, Finite, ModelSpec, Name, Ratio, Spec, TrainSpec

HP = Literal["log2_lr", "log2_init_std"]
HPS: tuple[HP, ...] = get_args(HP)
AxisName = Literal["width", "depth", "experts", "alpha", "fixed_topk"]


def _in_order(values: object) -> object:
    """Refuse a list that is empty or not increasing, before pydantic validates its entries."""
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
Seed = Annotated[int, Field(ge=0)]


class AxisSpec(Spec):
    """Models that differ from the base in one dimension; `[64, 128]` is short for `{sizes: [64, 128]}`."""

    sizes: Sizes = Field(description="values along the axis; the base's own value is always included")
    sweep: tuple[HP, ...] = Field(HPS, min_length=1, description="hyperparameters that are swept at each size")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"sizes": data} if isinstance(data, (list, tuple)) else data


class JointSpec(Spec):
    """Models that differ from the base in several dimensions at once."""

    models: tuple[dict[str, Ratio], ...] = Field(min_length=1, description="changes to the base, one mapping per size")
    sweep: tuple[HP, ...] = Field(HPS, min_length=1, description="hyperparameters that are swept at each size")


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


class GridSpec(Spec):
    """Values of the two hyperparameters at the base, as powers of two."""

    log2_lr: Grid = Field(description="learning rates, log2")
    log2_init_std: Grid | None = Field(None, description="init stds, log2; null: init is not swept")


class RefinementSpec(Spec):
    """Extra grid values and seeds for one curve of one axis; `expertp sweep --refine` adds them."""

    axis: str = Field(description="the axis")
    hp: HP = Field(description="the hyperparameter")
    values: Grid | None = Field(None, description="values added to the grid of `hp` on this axis, log2")
    seeds: tuple[Seed, ...] = Field((), description="seeds added to this curve")
    why: str = Field("", description="why they were added")


class VerdictSpec(Spec):
    """Thresholds of a verdict."""

    drift: Finite = Field(0.25, gt=0, description="allowed drift of the optimum, octaves per doubling")
    excess_nats: Finite = Field(0.01, gt=0, description="allowed zero-shot excess loss, nats")
    excess_sds: Finite = Field(
        2.0, gt=0, description="the same in standard deviations over seeds; the larger limit applies"
    )


class StudySpec(Spec):
    """All that a study compares; a study file has these sections."""

    earlier_names: ClassVar[Mapping[str, str]] = {"contrasts": "arms"}

    name: Name = Field(description="name of the study in reports")
    base: ModelSpec = Field(description="the model that was tuned; every axis starts from it")
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
    verdict: VerdictSpec | None = Field(default_factory=VerdictSpec, description="thresholds; null: no verdict")
    refinements: tuple[RefinementSpec, ...] = Field((), description="extra values and seeds, axis by axis")
    allow_kappa_change: bool = Field(False, description="needed by fixed_topk, and by joint sizes of another sparsity")
    keep_checkpoints: bool = Field(False, description="keep the last checkpoints of runs that have ended")

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
