"""Resolution of a run: its plan, and the compute dtype that `auto` stands for; no torch at import."""

from expertp.adapters.fit import Fit, fit
from expertp.adapters.spec import HFModelSpec
from expertp.errors import InputError
from expertp.plan import Plan, plan
from expertp.spec import BaseHPs, Dtype, Model, ModelSpec, RunSpec


def plan_run(run: RunSpec) -> Plan | Fit:
    """Return the plan of a run."""
    return plan_models(run.base, run.model, run.hps, run.train.steps, run.allow_kappa_change)


def plan_models(
    base: Model, target: Model, hps: BaseHPs, steps: int | None = None, allow_kappa_change: bool = False
) -> Plan | Fit:
    """Transfer hyperparameters between models of one kind: groups of the reference model, or tensors of a family."""
    match base, target:
        case ModelSpec(), ModelSpec():
            return plan(base, target, hps, steps=steps, allow_kappa_change=allow_kappa_change)
        case HFModelSpec(), HFModelSpec():
            described = base.described(), target.described()
            return fit(*described, hps, steps=steps, allow_kappa_change=allow_kappa_change)
        case _:
            raise InputError(
                "base and model are of different kinds; hyperparameters transfer between sizes of one kind"
            )


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
