"""Resolution of a run: its plan, and the compute dtype that `auto` stands for; no torch."""

from expertp.plan import Plan, plan
from expertp.spec import Dtype, RunSpec


def plan_run(run: RunSpec) -> Plan:
    """Return the plan of a run."""
    return plan(run.base, run.model, run.hps, steps=run.train.steps, allow_kappa_change=run.allow_kappa_change)


def resolve_dtype(run: RunSpec, device: str) -> Dtype:
    """Return the compute dtype: `auto` is bfloat16 on CUDA, and on CPU for matrices large enough to profit.

    The rule is fixed, not timed, so that a run does not depend on the machine; docs/performance.md has measurements.
    """
    if run.train.dtype != "auto":
        return run.train.dtype
    if device == "cuda":
        return "bfloat16"
    return "bfloat16" if min(run.model.n_embd, run.model.n_hid) >= 256 else "float32"


def resolved(run: RunSpec, device: str) -> RunSpec:
    """Return the run with `dtype: auto` resolved, as it is recorded and hashed."""
    return run.replace(train=run.train.replace(dtype=resolve_dtype(run, device)))
