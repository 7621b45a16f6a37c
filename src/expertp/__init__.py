"""ExpertP: tune a small Mixture-of-Experts language model, train a large one.

What needs torch is imported when it is first asked for, so that plans stay cheap. `expertp.train.train` and
`expertp.generate.generate` are not repeated here: a name cannot be both a module and its function.
"""

import importlib
from typing import TYPE_CHECKING, Any

from expertp.config import load_base, load_run, load_target
from expertp.errors import InputError
from expertp.plan import Plan, plan
from expertp.spec import BaseHPs, ModelSpec, RunSpec, TrainSpec

if TYPE_CHECKING:
    from expertp.balance import bias_update
    from expertp.data.prepare import prepare
    from expertp.generate import load_model
    from expertp.model.transformer import MoETransformer
    from expertp.optim import init_parameters, param_groups

_LATER = {
    "bias_update": "expertp.balance",
    "prepare": "expertp.data.prepare",
    "load_model": "expertp.generate",
    "MoETransformer": "expertp.model.transformer",
    "init_parameters": "expertp.optim",
    "param_groups": "expertp.optim",
}

__all__ = [
    "BaseHPs",
    "InputError",
    "MoETransformer",
    "ModelSpec",
    "Plan",
    "RunSpec",
    "TrainSpec",
    "bias_update",
    "init_parameters",
    "load_base",
    "load_model",
    "load_run",
    "load_target",
    "param_groups",
    "plan",
    "prepare",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'expertp' has no attribute '{name}'")
    return getattr(importlib.import_module(_LATER[name]), name)
