"""Fig. 4, Finding 1.1: transfer at sparsity 1/12, on another corpus; otherwise as transfer_quarter."""

from expertp.paper.finding import Finding, PaperStudy
from expertp.paper.transfer import CRITERIA, decide_transfer
from expertp.paper.transfer_quarter import AROUND, DEPTH, PAPER_SIZES_OF_DEPTH, SIZES, Sizes, with_controls

CLAIM = "At sparsity 1/12 and on another corpus, the optimal learning rate and init std transfer as well."

TWELFTH_SIZES: Sizes = {**SIZES, "experts": [24, 48, 96]}
TWELFTH_PAPER_SIZES: Sizes = {"width": [512, 1024], "experts": [12, 24, 48], "alpha": [1, 2, 4]}
# The corpus has a learning rate and an init std of its own, from a pilot at the base with the seeds 100 and 101.
CPU = {"corpus": "builtin", "base": {"n_exp": 24}, "hps": {"lr": 2**-7.5, "init_std": 1 / 16}}
PAPER = {"corpus": "c4", "base": {"n_exp": 12}}

STUDY = PaperStudy(
    "transfer-twelfth",
    cpu={**CPU, "lr_octaves": AROUND, **with_controls(TWELFTH_SIZES)},
    paper={**PAPER, "axes": TWELFTH_PAPER_SIZES},
    is_adaptive=True,
)
STUDY_OF_DEPTH = PaperStudy(
    "transfer-twelfth-depth",
    cpu={**CPU, "lr_octaves": AROUND, "base": {"n_exp": 24, "n_layer": 4}, **DEPTH},
    paper={**PAPER, "axes": PAPER_SIZES_OF_DEPTH},
    is_adaptive=True,
)

FINDING = Finding("transfer-twelfth", "Fig. 4, Finding 1.1", CLAIM, CRITERIA, (STUDY, STUDY_OF_DEPTH), decide_transfer)
