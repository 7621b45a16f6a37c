"""Fig. 4, Finding 1.1: transfer at sparsity 1/12, on another corpus.

Criterion: as in transfer_quarter.
"""

from expertp.paper.finding import Finding, PaperStudy
from expertp.paper.transfer import decide_transfer

CLAIM = "At sparsity 1/12 and on another corpus, the optimal learning rate and init std transfer as well."

STUDY = PaperStudy(
    "transfer-twelfth",
    cpu={
        "corpus": "k8s-docs",
        "axes": {"width": [96, 192, 384], "depth": [2, 4, 8], "experts": [12, 24, 48], "alpha": [1, 2, 4]},
    },
    paper={
        "corpus": "c4",
        "axes": {"width": [512, 1024], "depth": [8, 16, 32], "experts": [12, 24, 48], "alpha": [1, 2, 4]},
    },
    both={"base": {"n_exp": 12}},
)

FINDING = Finding("transfer-twelfth", "Fig. 4, Finding 1.1", CLAIM, (STUDY,), decide_transfer)
