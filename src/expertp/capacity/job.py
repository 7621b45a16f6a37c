"""What is to be trained and how: a model, its batch, and its layout. Run files have it; target files have the model."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from expertp.spec import AnyModel, Dtype, DtypeOrAuto, ExpertBackend, ParallelSpec, RunSpec, Spec

# Sequences per step of a model without a section `train:`.
SEQUENCES = 512


class WorkSpec(Spec):
    """The settings of `train:` that memory, traffic and time depend on."""

    batch_tokens: int | None = Field(None, gt=0, description=f"tokens per step; null: {SEQUENCES} sequences")
    steps: int | None = Field(None, gt=0, description="optimizer steps; null: not decided")
    micro_batch: int | None = Field(1, gt=0, description="sequences per forward pass; null: a device's whole share")
    dtype: DtypeOrAuto = Field("bfloat16", description="compute dtype; auto: bfloat16")
    expert_backend: ExpertBackend = Field("auto", description="implementation of the experts; auto: grouped")
    activation_checkpointing: bool = Field(False, description="recompute blocks in the backward pass")


class JobSpec(Spec):
    """One training job: the model, its batch, and its layout."""

    model: AnyModel
    train: WorkSpec = Field(default_factory=WorkSpec)
    parallel: ParallelSpec = Field(default_factory=ParallelSpec)

    @model_validator(mode="after")
    def _check_batch(self) -> JobSpec:
        tokens, context = self.train.batch_tokens, self.model.context
        if tokens is not None and tokens % context:
            near = max(1, round(tokens / context)) * context
            raise ValueError(f"train.batch_tokens={tokens} is not a multiple of model.context={context}; set {near}")
        return self

    @classmethod
    def of_run(cls, run: RunSpec) -> JobSpec:
        """Return the job of a run."""
        train: dict[str, Any] = {name: getattr(run.train, name) for name in WorkSpec.model_fields}
        return cls(model=run.model, train=WorkSpec(**train), parallel=run.parallel)

    @property
    def sequences(self) -> int:
        """Sequences per optimizer step."""
        return (self.train.batch_tokens or SEQUENCES * self.model.context) // self.model.context

    @property
    def step_tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.sequences * self.model.context

    @property
    def tokens(self) -> int | None:
        """Tokens of the whole job, if the number of steps is decided."""
        return None if self.train.steps is None else self.train.steps * self.step_tokens

    @property
    def dtype(self) -> Dtype:
        """Compute dtype."""
        return "bfloat16" if self.train.dtype == "auto" else self.train.dtype

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number in the compute dtype."""
        return {"bfloat16": 2, "float32": 4, "float64": 8}[self.dtype]

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight, its gradient and each of Adam's moments; norms and routers compute with them."""
        return 8 if self.dtype == "float64" else 4
