"""Zero-shot runs at all sizes of the studies of transfer. Shared by the findings that compare sizes, not grids.

An adaptive study trains the base and the largest size of an axis only. These studies have the sizes in between as well,
and share their other runs with it.
"""

from expertp.paper import transfer_quarter, transfer_twelfth
from expertp.paper.constants import PAPER_HPS
from expertp.paper.finding import zero_shot_study

QUARTER = zero_shot_study(
    "zero-shot-quarter", cpu={"axes": transfer_quarter.SIZES}, paper={"axes": transfer_quarter.PAPER_SIZES}
)
QUARTER_DEPTH = zero_shot_study(
    "zero-shot-quarter-depth",
    cpu={"base": {"n_layer": 4}, "axes": transfer_quarter.SIZES_OF_DEPTH},
    paper={"axes": transfer_quarter.PAPER_SIZES_OF_DEPTH},
)
# Beside QUARTER, with another set of constants.
QUARTER_BESIDE = zero_shot_study(
    "zero-shot-quarter-beside",
    cpu={"hps": PAPER_HPS, "axes": transfer_quarter.SIZES},
    paper={"hps": {"constants": "ones"}, "axes": transfer_quarter.PAPER_SIZES},
)
TWELFTH = zero_shot_study(
    "zero-shot-twelfth",
    cpu={**transfer_twelfth.CPU, "axes": transfer_twelfth.TWELFTH_SIZES},
    paper={**transfer_twelfth.PAPER, "axes": transfer_twelfth.TWELFTH_PAPER_SIZES},
)
