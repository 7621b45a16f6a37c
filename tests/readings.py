"""Studies with results and records that were made to deserve a verdict; nothing is trained."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

from expertp.analysis.curves import StudyTable
from expertp.analysis.transfer import judge
from expertp.config import build
from expertp.report.reading import Reading
from expertp.study import StudySpec, expand, scale_of
from expertp.study_store import Result

INF = math.inf
HOLDS, NOT, UNSURE = "HOLDS", "DOES NOT HOLD AT THIS SCALE", "INCONCLUSIVE"
STEPS, BATCH = 8, 128
BASE = {"n_embd": 32, "d_head": 16, "n_layer": 2, "n_exp": 4, "n_act": 1, "vocab_size": 64, "context": 16}
LR = {"sweep": ["log2_lr"]}
AT_CENTRE = {"grids": {"log2_lr": [-7]}, "verdict": None}


@dataclass(frozen=True)
class Stored:
    """What a reading needs of a study's directory, without a disk."""

    study: StudySpec
    records: dict

    def directory(self, identity):
        return SimpleNamespace(metrics=lambda: self.records[identity])


def study(name="study", **changes):
    tree = {
        "name": name,
        "base": BASE,
        "hps": {"lr": 2.0**-7, "init_std": 2.0**-4},
        "train": {"data": "none", "steps": STEPS, "batch_tokens": BATCH, "eval_every": 2},
        "grids": {"log2_lr": [-10, -9, -8, -7, -6, -5, -4]},
        "seeds": [0, 1, 2],
        **changes,
    }
    return build(StudySpec, tree, name)


def reading(spec, loss=lambda _: 3.0, records=lambda _: []):
    """Return a study all of whose runs have ended: with a loss, or diverged where it is infinite."""
    runs = dict(enumerate(expand(spec)))
    losses = {place: loss(run) for place, run in runs.items()}
    results = [
        Result(run, str(place), "diverged" if math.isinf(losses[place]) else "finished", val_loss=losses[place])
        for place, run in runs.items()
    ]
    stored = Stored(spec, {str(place): records(run) for place, run in runs.items()})
    return Reading(stored, results, StudyTable(spec, results), judge(spec, results))


def log2_lr(run):
    return math.log2(run.hps.lr)


def doublings(run):
    return math.log2(scale_of(run.model, run.base))


def valley(run, lr=-7.0, init=-4.0, lr_drift=0.0, init_drift=0.0):
    """Return a loss whose optimum lies where it is told; a seed shifts all of them alike, and there is no noise."""
    away_lr = log2_lr(run) - lr - lr_drift * doublings(run)
    away_init = math.log2(run.hps.init_std) - init - init_drift * doublings(run)
    return 3 - 0.1 * doublings(run) + 0.04 * (away_lr**2 + away_init**2) + 0.001 * run.train.seed


def outcome(shown):
    return shown.outcome.verdict, shown.outcome.number, shown.outcome.why


def loads(deviations):
    return [
        {"step": step, "max_load_deviation": [0.0, deviation], "dead_experts": [0, 0]}
        for step, deviation in enumerate(deviations, 1)
    ]
