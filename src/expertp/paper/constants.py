"""The sets of constants that findings compare in the profile `cpu`: the paper's, a tuned set, and all ones."""

from typing import Any

# Names of arms; the paper's constants are those of the study's own arm.
PAPER, TUNED, ONES = "paper", "tuned", "all ones"
# Found by `expertp tune` at a base of 96 channels and one active expert.
TUNED_HPS: dict[str, Any] = {
    "lr": 1 / 256,
    "constants": {"router_lr": 1 / 4, "attn_v_lr": 1 / 16, "attn_v_init": 1 / 4},
}
ONES_HPS: dict[str, Any] = {"lr": 1 / 256, "constants": "ones"}
