"""Fig. 2, Finding 1.1: transfer of learning rate and init std at sparsity 1/4.

Criterion: every curve (axis x hyperparameter) passes the study's own verdict, with the default thresholds of
`VerdictSpec` on drift and zero-shot excess loss.
"""

from expertp.paper.finding import Finding, PaperStudy
from expertp.paper.transfer import decide_transfer

CLAIM = (
    "At sparsity 1/4, the optimal learning rate and init std transfer across width, depth, number of experts and "
    "expert size."
)

STUDY = PaperStudy(
    "transfer-quarter",
    cpu={"axes": {"width": [96, 192, 384], "depth": [2, 4, 8], "experts": [4, 8, 16], "alpha": [1, 2, 4]}},
    paper={
        "axes": {
            "width": [256, 512, 1024, 2048, 4096],  # 20M to 1.8B parameters
            "depth": [8, 16, 32],
            "experts": [4, 8, 16, 32],
            "alpha": [1, 2, 4, 8],
        }
    },
)

FINDING = Finding("transfer-quarter", "Fig. 2, Finding 1.1", CLAIM, (STUDY,), decide_transfer)
