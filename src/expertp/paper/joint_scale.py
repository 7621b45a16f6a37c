"""Fig. 13, appendix D.3: experts and width grow together, up to 50 times the base's parameters.

In the paper, the largest model has 2.54B parameters, 944M of them active.
"""

from expertp.paper.finding import Finding, PaperStudy
from expertp.paper.transfer import CRITERIA, decide_transfer

CLAIM = "The optimal learning rate transfers when experts and width grow together, up to 50 times the base."

STUDY = PaperStudy(
    "joint-scale",
    cpu={
        "joint": {
            "together": {
                "models": [{"n_embd": 128, "n_exp": 16, "n_act": 4}, {"n_embd": 256, "n_exp": 32, "n_act": 8}],
                "sweep": ["log2_lr"],
                "sweep_at": [16],
            }
        },
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
    is_adaptive=True,
)

FINDING = Finding("joint-scale", "Fig. 13, appendix D.3", CLAIM, CRITERIA, (STUDY,), decide_transfer)
