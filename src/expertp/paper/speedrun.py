"""Fig. 1, Finding 2.1: a larger MoE with zero-shot hyperparameters competes with a dense model.

On cpu: a model of twice the base's width and depth, on the horizon of the finding horizon.
In the paper: GPT2-small by its active parameters (124M). The dense model has the same active parameters and is tuned
itself.
"""

from expertp.paper.finding import Criteria, Finding, Outcome, PaperStudy, Tables, joint_models, zero_shot_study
from expertp.paper.horizon import LARGER, LONG
from expertp.paper.race import (
    DENSE_CPU,
    DENSE_GRIDS,
    EQUAL,
    OPEN,
    RACE_SEEDS,
    STANDARD,
    decide_race,
    dense_sections,
)

CLAIM = "A larger MoE with zero-shot hyperparameters, trained for longer, competes with dense models."
CRITERIA = Criteria(
    paper="The MoE's mean final loss is at most that of the tuned dense model.",
    ours=f"The MoE's final loss is at most {EQUAL} nats above that of the tuned dense model, beyond noise. {OPEN}",
)

PAPER = {"steps": 20000, "schedule": "cosine", "eval_every": 500}

MOE = zero_shot_study(
    "speedrun",
    cpu={"train": LONG, "joint": joint_models({"E8A2": LARGER})},
    paper={"train": PAPER, "joint": joint_models({"E4A1": {"alpha_ffn": 4}}, n_embd=768, n_layer=12)},
    both={"seeds": RACE_SEEDS},
)
DENSE = PaperStudy(
    "speedrun-dense",
    cpu={
        "train": LONG,
        **dense_sections(**LARGER, alpha_ffn=2, **DENSE_CPU),
        **DENSE_GRIDS,
    },
    paper={
        "train": PAPER,
        **dense_sections(n_embd=768, n_layer=12, lr=1 / 512, init_std=1 / 64, **STANDARD),
        "grids": {"log2_lr": [-11, -10, -9, -8, -7], "log2_init_std": [-7, -6, -5]},
    },
    both={"seeds": RACE_SEEDS, "verdict": None},
)


def decide(tables: Tables) -> Outcome:
    """Judge the race of the study's only MoE model."""
    moe = tables[MOE.name]
    return decide_race(dict.fromkeys(moe.axes, moe), tables[DENSE.name])


FINDING = Finding("speedrun", "Fig. 1, Finding 2.1", CLAIM, CRITERIA, (MOE, DENSE), decide)
