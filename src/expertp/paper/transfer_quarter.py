"""Fig. 2, Finding 1.1: transfer of learning rate and init std at sparsity 1/4.

Depth has a study of its own. On cpu it begins at four layers, with the learning rate and init std that a pilot has
found for them. Each axis on cpu has a control that should fail: sp along width, no_depth along depth, fan_in_stack
along experts and expert size. no_mean and no_alpha are arms without this expectation: layer norms make the network
indifferent to a larger MoE output. A study with another set of constants stands beside the claim: on cpu the paper's,
in the paper all ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from expertp.paper.constants import PAPER_HPS
from expertp.paper.finding import Finding, PaperStudy
from expertp.paper.transfer import CRITERIA, decide_transfer

CLAIM = (
    "At sparsity 1/4, the optimal learning rate and init std transfer across width, depth, number of experts and "
    "expert size."
)


Sizes = Mapping[str, Sequence[float]]  # by axis

# Octaves around the learning rate and init std of a study that has its own.
AROUND = [-1.5, -1, -0.5, 0, 0.5, 1, 1.5]

SIZES: Sizes = {"width": [64, 128, 256], "experts": [8, 16, 32], "alpha": [1, 2, 4]}
SIZES_OF_DEPTH: Sizes = {"depth": [4, 8, 16]}
PAPER_SIZES: Sizes = {
    "width": [256, 512, 1024, 2048, 4096],  # 20M to 1.8B parameters
    "experts": [4, 8, 16, 32],
    "alpha": [1, 2, 4, 8],
}
PAPER_SIZES_OF_DEPTH: Sizes = {"depth": [8, 16, 32]}


def swept_at_largest(sizes: Sizes, **settings: Any) -> dict[str, Any]:
    """Return axes whose grids are swept at the base and at the largest size only."""
    return {axis: {"sizes": values, "sweep_at": values[-1:], **settings} for axis, values in sizes.items()}


def with_controls(sizes: Sizes) -> dict[str, Any]:
    """Return axes, controls on them, and arms without one factor, which layer norms may make up for."""
    return {
        "axes": swept_at_largest(sizes),
        "arms": {
            "sp": {"axes": ["width"], "control": ["width"]},
            "fan_in_stack": {"axes": ["experts", "alpha"], "control": ["experts", "alpha"]},
            "no_mean": {"axes": ["experts"]},
            "no_alpha": {"axes": ["alpha"]},
        },
    }


DEPTH = {
    "axes": swept_at_largest(SIZES_OF_DEPTH),
    "arms": {"no_depth": {"axes": ["depth"], "control": ["depth"]}},
}

STUDY = PaperStudy("transfer-quarter", cpu=with_controls(SIZES), paper={"axes": PAPER_SIZES}, is_adaptive=True)
# The fitted optimum of a base of four layers in a pilot (docs/results/paper/pilots), and seeds that it has not seen.
STUDY_OF_DEPTH = PaperStudy(
    "transfer-quarter-depth",
    cpu={
        "base": {"n_layer": 4},
        "hps": {"lr": 2**-6.68, "init_std": 2**-3.61},
        "seeds": [6, 7, 8],
        **{"lr_octaves": AROUND, "init_octaves": AROUND},
        **DEPTH,
    },
    paper={"axes": PAPER_SIZES_OF_DEPTH},
    is_adaptive=True,
)
STUDY_BESIDE = PaperStudy(
    "transfer-quarter-beside",
    cpu={"hps": PAPER_HPS, "axes": swept_at_largest(SIZES, sweep=["log2_lr"])},
    paper={"hps": {"constants": "ones"}, "axes": {"width": [512, 2048], "experts": [4, 16], "alpha": [1, 4]}},
    both={"grids": {"log2_init_std": None}},
    is_adaptive=True,
)

FINDING = Finding(
    "transfer-quarter",
    "Fig. 2, Finding 1.1",
    CLAIM,
    CRITERIA,
    (STUDY, STUDY_OF_DEPTH, STUDY_BESIDE),
    lambda tables: decide_transfer(tables, beside=[STUDY_BESIDE.name]),
)
