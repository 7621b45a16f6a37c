"""Fig. 4, Finding 1.1: transfer at sparsity 1/12, on another corpus; otherwise as transfer_quarter."""

from expertp.paper.finding import Finding, PaperStudy
from expertp.paper.transfer import CRITERIA, decide_transfer
from expertp.paper.transfer_quarter import DEPTH, axes

CLAIM = "At sparsity 1/12 and on another corpus, the optimal learning rate and init std transfer as well."

STUDY = PaperStudy(
    "transfer-twelfth",
    cpu={"corpus": "k8s-docs", "base": {"n_exp": 24}, **axes(experts=24)},
    paper={
        "corpus": "c4",
        "base": {"n_exp": 12},
        "axes": {"width": [512, 1024], "experts": [12, 24, 48], "alpha": [1, 2, 4]},
    },
    is_adaptive=True,
)
STUDY_OF_DEPTH = PaperStudy(
    "transfer-twelfth-depth",
    cpu={"corpus": "k8s-docs", "base": {"n_exp": 24, "n_layer": 4}, **DEPTH},
    paper={"corpus": "c4", "base": {"n_exp": 12}, "axes": {"depth": [8, 16, 32]}},
    is_adaptive=True,
)

FINDING = Finding(
    "transfer-twelfth", "Fig. 4, Finding 1.1", CLAIM, CRITERIA, (STUDY, STUDY_OF_DEPTH), decide_transfer
)
