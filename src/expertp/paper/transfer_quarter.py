"""Fig. 2, Finding 1.1: transfer of learning rate and init std at sparsity 1/4.

On cpu, depth has a study of its own, which begins at four layers. Each axis has a control that should fail: sp along
width, no_depth, no_mean and no_alpha along the others.
"""

from typing import Any

from expertp.paper.finding import Finding, PaperStudy
from expertp.paper.transfer import CRITERIA, decide_transfer

CLAIM = (
    "At sparsity 1/4, the optimal learning rate and init std transfer across width, depth, number of experts and "
    "expert size."
)


def axes(experts: int) -> dict[str, Any]:
    """Return axes and controls of a study on cpu whose base has so many experts."""
    return {
        "axes": {
            "width": {"sizes": [128, 256, 512], "sweep_at": [512]},
            "experts": {"sizes": [experts, 2 * experts, 4 * experts], "sweep_at": [4 * experts]},
            "alpha": {"sizes": [1, 2, 4], "sweep_at": [4]},
        },
        "arms": {
            "sp": {"axes": ["width"], "control": ["width"]},
            "no_mean": {"axes": ["experts"], "control": ["experts"]},
            "no_alpha": {"axes": ["alpha"], "control": ["alpha"]},
        },
    }


DEPTH = {
    "axes": {"depth": {"sizes": [4, 8, 16], "sweep_at": [16]}},
    "arms": {"no_depth": {"axes": ["depth"], "control": ["depth"]}},
}

STUDY = PaperStudy(
    "transfer-quarter",
    cpu=axes(experts=8),
    paper={
        "axes": {
            "width": [256, 512, 1024, 2048, 4096],  # 20M to 1.8B parameters
            "experts": [4, 8, 16, 32],
            "alpha": [1, 2, 4, 8],
        }
    },
    is_adaptive=True,
)
STUDY_OF_DEPTH = PaperStudy(
    "transfer-quarter-depth",
    cpu={"base": {"n_layer": 4}, **DEPTH},
    paper={"axes": {"depth": [8, 16, 32]}},
    is_adaptive=True,
)

FINDING = Finding(
    "transfer-quarter", "Fig. 2, Finding 1.1", CLAIM, CRITERIA, (STUDY, STUDY_OF_DEPTH), decide_transfer
)
