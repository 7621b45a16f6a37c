"""Fig. 13, appendix D.3: experts and width grow together, up to 50 times the base.

In the paper, the largest model has 2.54B parameters, 944M of them active. Criterion: as in transfer_quarter.
"""

from expertp.paper.finding import Finding, PaperStudy
from expertp.paper.transfer import decide_transfer

CLAIM = "The optimal learning rate transfers when experts and width grow together, up to 50 times the base."

STUDY = PaperStudy(
    "joint-scale",
    cpu={
        "train": {"steps": 200, "eval_every": 200},
        "joint": {
            "together": {"models": [{"n_embd": 192, "n_exp": 8, "n_act": 2}, {"n_embd": 448, "n_exp": 16, "n_act": 4}]}
        },
        "grids": {"log2_lr": [-10, -9, -8, -7, -6]},
        "seeds": [0, 1, 2],
    },
    paper={
        "joint": {
            "together": {
                "models": [
                    {"n_embd": 1024, "n_exp": 8, "n_act": 2},
                    {"n_embd": 1536, "n_exp": 16, "n_act": 4},
                    {"n_embd": 2880, "n_exp": 16, "n_act": 4},
                ]
            }
        }
    },
    both={"grids": {"log2_init_std": None}},
)

FINDING = Finding("joint-scale", "Fig. 13, appendix D.3", CLAIM, (STUDY,), decide_transfer)
