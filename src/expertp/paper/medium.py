"""Fig. 15, Finding 2.1: the race of speedrun with three MoE models.

In the paper, the models are larger: GPT2-medium, 355M active parameters.
"""

from expertp.paper.finding import Criteria, Finding, Outcome, PaperStudy, Tables, joint_models, zero_shot_study
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

CLAIM = (
    "At a larger size, MoE models compete with the dense model as well. E16A4 ends clearly below E4A1, and on a par "
    "with E12A1, which has more parameters."
)
CRITERIA = Criteria(
    paper="By their mean final losses, every MoE model ends at or below the tuned dense model, E16A4 ends below E4A1, "
    f"and E16A4 and E12A1 differ by at most {EQUAL} nats.",
    ours=f"Every MoE model ends at most {EQUAL} nats above the tuned dense model, E16A4 ends significantly below E4A1, "
    f"and E16A4 and E12A1 differ by at most {EQUAL} nats, all beyond noise. {OPEN}",
)

CPU = {"steps": 600, "schedule": "cosine", "eval_every": 60}
PAPER = {"steps": 15000, "schedule": "cosine", "eval_every": 500}
E4A1_E16A4 = {
    "E4A1": {"n_exp": 4, "n_act": 1, "alpha_ffn": 4},
    "E16A4": {"n_exp": 16, "n_act": 4, "alpha_ffn": 1},
}
E12A1 = {"E12A1": {"n_exp": 12, "n_act": 1, "alpha_ffn": 4}}

QUARTER = zero_shot_study(
    "medium",
    cpu={"train": CPU, "joint": joint_models(E4A1_E16A4, n_embd=128, n_layer=4)},
    paper={"train": PAPER, "joint": joint_models(E4A1_E16A4, n_embd=1024, n_layer=24)},
    both={"seeds": RACE_SEEDS},
)
TWELFTH = zero_shot_study(
    "medium-twelfth",
    cpu={"train": CPU, "base": {"n_exp": 24}, "joint": joint_models(E12A1, n_embd=128, n_layer=4)},
    paper={"train": PAPER, "base": {"n_exp": 12}, "joint": joint_models(E12A1, n_embd=1024, n_layer=24)},
    both={"seeds": RACE_SEEDS},
)
DENSE = PaperStudy(
    "medium-dense",
    cpu={
        "train": CPU,
        **dense_sections(n_embd=128, n_layer=4, **DENSE_CPU),
        **DENSE_GRIDS,
    },
    paper={
        "train": PAPER,
        **dense_sections(n_embd=1024, n_layer=24, lr=1 / 1024, init_std=1 / 64, **STANDARD),
        "grids": {"log2_lr": [-12, -11, -10, -9, -8], "log2_init_std": [-7, -6, -5]},
    },
    both={"seeds": RACE_SEEDS, "verdict": None},
)


def decide(tables: Tables) -> Outcome:
    """Judge the race, and the two comparisons between MoE models."""
    quarter, twelfth = tables[QUARTER.name], tables[TWELFTH.name]
    return decide_race(
        {"E4A1": quarter, "E16A4": quarter, "E12A1": twelfth},
        tables[DENSE.name],
        ahead=[("E16A4", "E4A1")],
        equal=[("E16A4", "E12A1")],
    )


FINDING = Finding("medium", "Fig. 15, Finding 2.1", CLAIM, CRITERIA, (QUARTER, TWELFTH, DENSE), decide)
