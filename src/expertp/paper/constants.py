"""The sets of constants that findings compare: the paper's, a tuned set, and all ones.

The claims of the profile `cpu` are made with the tuned set, those of the profile `paper` with the paper's.
"""

from typing import Any

from expertp.spec import BaseHPs

# Names of sets of constants.
PAPER, TUNED, ONES = "paper", "tuned", "all ones"
# Hyperparameters at the base of the profile `cpu` for the sets other than its own. The learning rate of the profile is
# the best for the paper's constants as well: in a pilot with the seeds 100 and 101, medians were 3.265, 3.262 and 3.267
# at 2^-7, 2^-6.5 and 2^-6.
PAPER_HPS: dict[str, Any] = {"constants": "paper"}
# The learning rate and init std of all ones are the best of the same pilot (docs/results/paper/pilots); for the paper's
# constants, those of the profile were.
ONES_HPS: dict[str, Any] = {"constants": "ones", "lr": 2**-7.5, "init_std": 2**-4}


def constants_label(hps: BaseHPs) -> str:
    """Return the name of the set of constants of an arm.

    >>> constants_label(BaseHPs(lr=0.01, constants="paper")), constants_label(BaseHPs(lr=0.01))
    ('paper', 'all ones')
    """
    return {"paper": PAPER, "ones": ONES}[hps.constants] if isinstance(hps.constants, str) else TUNED
