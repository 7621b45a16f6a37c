"""ExpertP: tune a small Mixture-of-Experts language model, train a large one.

The public names of the three parts, plan, study and theory. Names that need torch are imported on first use, so that
`import expertp` stays quick and free of torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from expertp.adapters.spec import HFModelSpec  # a kind of model: sections of files may have it
from expertp.config import load_base, load_run, load_target
from expertp.errors import InputError
from expertp.plan import Plan, plan
from expertp.spec import BaseHPs, ModelSpec, RunSpec, TrainSpec
from expertp.study.load import load_study
from expertp.study.spec import StudySpec

if TYPE_CHECKING:
    from expertp.adapters.adapted import Adapted, adapt
    from expertp.analysis.transfer import judge
    from expertp.analysis.verdict import StudyVerdict, Verdict
    from expertp.data.prepare import prepare
    from expertp.model.balance import bias_update
    from expertp.model.transformer import MoETransformer
    from expertp.report.build import render_report
    from expertp.study.sweep import run_study
    from expertp.study.table import StudyTable
    from expertp.theory.compare import solve
    from expertp.theory.finite import simulate
    from expertp.theory.problem import Problem
    from expertp.theory.trajectory import Trajectory
    from expertp.training.generate import Sampling, generate, load_model
    from expertp.training.optim import init_parameters, param_groups
    from expertp.training.records import RunResult, StepMetrics
    from expertp.training.train import train

# Names that are imported on first use -> their modules.
_LAZY = {
    "Adapted": "adapters.adapted",
    "MoETransformer": "model.transformer",
    "Problem": "theory.problem",
    "RunResult": "training.records",
    "Sampling": "training.generate",
    "StepMetrics": "training.records",
    "StudyTable": "study.table",
    "StudyVerdict": "analysis.verdict",
    "Trajectory": "theory.trajectory",
    "Verdict": "analysis.verdict",
    "adapt": "adapters.adapted",
    "bias_update": "model.balance",
    "generate": "training.generate",
    "init_parameters": "training.optim",
    "judge": "analysis.transfer",
    "load_model": "training.generate",
    "param_groups": "training.optim",
    "prepare": "data.prepare",
    "render_report": "report.build",
    "run_study": "study.sweep",
    "simulate": "theory.finite",
    "solve": "theory.compare",
    "train": "training.train",
}

__all__ = [
    "Adapted",
    "BaseHPs",
    "HFModelSpec",
    "InputError",
    "MoETransformer",
    "ModelSpec",
    "Plan",
    "Problem",
    "RunResult",
    "RunSpec",
    "Sampling",
    "StepMetrics",
    "StudySpec",
    "StudyTable",
    "StudyVerdict",
    "TrainSpec",
    "Trajectory",
    "Verdict",
    "adapt",
    "bias_update",
    "generate",
    "init_parameters",
    "judge",
    "load_base",
    "load_model",
    "load_run",
    "load_study",
    "load_target",
    "param_groups",
    "plan",
    "prepare",
    "render_report",
    "run_study",
    "simulate",
    "solve",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'expertp' has no attribute '{name}'")
    return getattr(importlib.import_module(f"expertp.{_LAZY[name]}"), name)
