"""Fig. 1, Finding 2.1: a larger MoE with zero-shot hyperparameters competes with a dense model.

On cpu: a model of twice the base's width and depth with larger experts. In the paper: GPT2-small by its active
parameters (124M). The dense model has the same active parameters and is tuned itself.

Criterion: the MoE's final loss is at most 0.02 nats above that of the dense model, beyond the noise over seeds. It is
not decided while the dense model's optimum lies on the edge of a grid.
"""

from expertp.paper.finding import Finding, PaperStudy, joint_models, zero_shot_study
from expertp.paper.race import decide_race, dense_sections

CLAIM = "A larger MoE with zero-shot hyperparameters, trained for longer, competes with dense models."

CPU = {"steps": 600, "schedule": "cosine", "eval_every": 75, "eval_tokens": 32768}
PAPER = {"steps": 20000, "schedule": "cosine", "eval_every": 500}
E4A1 = {"E4A1": {"alpha_ffn": 4}}

MOE = zero_shot_study(
    "speedrun",
    cpu={"train": CPU, "joint": joint_models(E4A1, n_embd=192, n_layer=4)},
    paper={"train": PAPER, "joint": joint_models(E4A1, n_embd=768, n_layer=12)},
    both={"seeds": [0, 1, 2]},
)
DENSE = PaperStudy(
    "speedrun-dense",
    cpu={
        "train": CPU,
        **dense_sections(n_embd=192, n_layer=4, lr=1 / 256, init_std=1 / 32),
        "grids": {"log2_lr": [-10, -9, -8, -7], "log2_init_std": [-6, -5, -4, -3]},
    },
    paper={
        "train": PAPER,
        **dense_sections(n_embd=768, n_layer=12, lr=1 / 512, init_std=1 / 64),
        "grids": {"log2_lr": [-11, -10, -9, -8, -7], "log2_init_std": [-7, -6, -5]},
    },
    both={"seeds": [0, 1, 2], "verdict": None},
)

FINDING = Finding(
    "speedrun",
    "Fig. 1, Finding 2.1",
    CLAIM,
    (MOE, DENSE),
    lambda tables: decide_race({"E4A1": tables[MOE.name]}, tables[DENSE.name]),
)
