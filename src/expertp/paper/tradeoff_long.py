"""Fig. 16, Finding 3.1: more experts or larger experts, for over-trained models.

In the paper: 51M and 102M active parameters, 4.92B tokens. Each number of active parameters is judged on its own.
"""

from expertp.paper.finding import Finding, joint_models, zero_shot_study
from expertp.paper.granularity import CRITERIA, compare_granularity

CLAIM = "At a fixed number of parameters, more experts are better than larger experts for over-trained models, too."

# The same active model, cut into more and more experts; in the paper at two numbers of active parameters.
SMALL = {
    "E4A1": {"n_exp": 4, "n_act": 1, "alpha_ffn": 4},
    "E8A2": {"n_exp": 8, "n_act": 2, "alpha_ffn": 2},
    "E16A4": {"n_exp": 16, "n_act": 4, "alpha_ffn": 1},
}
LARGE = {
    "E4A1 102M": {"n_exp": 4, "n_act": 1, "alpha_ffn": 16},
    "E8A2 102M": {"n_exp": 8, "n_act": 2, "alpha_ffn": 8},
    "E16A4 102M": {"n_exp": 16, "n_act": 4, "alpha_ffn": 4},
}

STUDY = zero_shot_study(
    "granularity-long",
    cpu={"train": {"steps": 3000, "schedule": "cosine", "eval_every": 3000}, "joint": joint_models(SMALL)},
    paper={"train": {"steps": 9846, "schedule": "cosine"}, "joint": joint_models({**SMALL, **LARGE})},
    both={"seeds": [0, 1, 2]},
)

FINDING = Finding(
    "tradeoff-long",
    "Fig. 16, Finding 3.1",
    CLAIM,
    CRITERIA,
    (STUDY,),
    lambda tables: compare_granularity(tables[STUDY.name]),
)
