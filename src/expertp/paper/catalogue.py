"""All figures of the paper: what each claims, and what shows it here."""

from __future__ import annotations

from collections.abc import Mapping

from expertp.errors import InputError, did_you_mean
from expertp.paper import curves_in_time, settings, transfers
from expertp.paper.finding import Finding

QUARTER, TWELFTH = "transfer-quarter", "transfer-twelfth"

_ALL = (
    Finding(
        QUARTER,
        "Fig. 2, Finding 1.1",
        "At sparsity 1/4 the optimal learning rate and init std transfer across width, depth, experts and expert size.",
        (QUARTER,),
        transfers.transfer(QUARTER),
    ),
    Finding(
        TWELFTH,
        "Fig. 4, Finding 1.1",
        "The same at sparsity 1/12, on another corpus.",
        (TWELFTH,),
        transfers.transfer(TWELFTH),
    ),
    Finding(
        "loss-collapse",
        "Fig. 3, Finding 1.2",
        "With transferred hyperparameters, early curves along width, experts and expert size lie on the base's.",
        (QUARTER, TWELFTH),
        curves_in_time.collapses((QUARTER, TWELFTH)),
    ),
    Finding(
        "speedrun",
        "Fig. 1, Finding 2.1",
        "A larger MoE with zero-shot hyperparameters, trained for longer, competes with dense models.",
        ("speedrun", "speedrun-dense"),
        curves_in_time.races({"speedrun": ("E4A1",)}, "speedrun-dense"),
    ),
    Finding(
        "medium",
        "Fig. 15, Finding 2.1",
        "So it does at a larger size; E16A4 is clearly ahead of E4A1 and like E12A1, which has more parameters.",
        ("medium", "medium-twelfth", "medium-dense"),
        curves_in_time.races(
            {"medium": ("E4A1", "E16A4"), "medium-twelfth": ("E12A1",)},
            "medium-dense",
            ahead=[("E16A4", "E4A1")],
            alike=[("E16A4", "E12A1")],
        ),
    ),
    Finding(
        "tradeoff",
        "Fig. 5, Finding 3.1",
        "At fixed parameter count more experts are better than larger ones.",
        (QUARTER, TWELFTH, "granularity"),
        settings.tradeoff,
    ),
    Finding(
        "tradeoff-long",
        "Fig. 16, Finding 3.1",
        "The same for over-trained models.",
        ("granularity-long",),
        settings.tradeoff_long,
    ),
    Finding(
        "bias-shift",
        "Fig. 6, appendix B",
        "A constant learning rate of expert biases exchanges the same share of active experts at every expert count.",
        (),
        settings.bias_shifts,
    ),
    Finding(
        "weight-decay",
        "Fig. 7, appendix C",
        "Under independent weight decay, no decay is about as good as the best one at this horizon, at every size.",
        ("weight-decay",),
        settings.decay,
    ),
    Finding(
        "constants-loss",
        "Fig. 8, appendix D.1",
        "Without tuned constants the loss is higher even at the best learning rate, and above it some seeds diverge.",
        ("constants",),
        settings.constants_loss,
    ),
    Finding(
        "constants-load",
        "Fig. 9, appendix D.1",
        "Without tuned constants experts are loaded less evenly.",
        ("constants",),
        settings.constants_balance,
    ),
    Finding(
        "fixed-topk",
        "Fig. 10, Section 3.2",
        "With a fixed number of active experts (kappa -> 0) the optimum moves, or training loses its stability.",
        ("fixed-topk",),
        transfers.no_transfer("fixed-topk"),
    ),
    Finding(
        "fan-in-down",
        "Fig. 11, appendix D.3",
        "A fan-in init of the down-projections (alpha^-1/2) breaks the early invariance that alpha^-1 keeps.",
        ("fan-in-down",),
        curves_in_time.fan_in,
    ),
    Finding(
        "scaling-fit",
        "Fig. 12, appendix D.3",
        "Final loss falls linearly with the logarithm of the number of parameters.",
        (QUARTER,),
        settings.parameters,
    ),
    Finding(
        "joint-scale",
        "Fig. 13, appendix D.3",
        "Transfer holds when experts and width grow together, up to 50 times the base.",
        ("joint-scale",),
        transfers.transfer("joint-scale"),
    ),
    Finding(
        "horizon",
        "Fig. 14, appendix D.3",
        "Optima of a short horizon hold for a larger model on a longer one with a cosine schedule.",
        (QUARTER, "horizon"),
        transfers.longer_horizon(QUARTER, "horizon"),
    ),
    Finding(
        "imbalance",
        "Fig. 17, appendix D.3",
        "Expert loads become even at every scale, and stay so on a longer horizon.",
        (QUARTER, "horizon"),
        curves_in_time.imbalance,
    ),
    Finding(
        "softmax",
        "Fig. 18, appendix D.3",
        "Softmax instead of sigmoid gates does not change the transfer.",
        ("softmax", QUARTER),
        transfers.same_transfer("softmax", QUARTER),
    ),
    Finding(
        "soft-router",
        "Fig. 19, appendix E",
        "The loss of networks with soft routers converges to the mean-field limit, along three ways of growing.",
        (),
        settings.soft_routers,
    ),
)
FINDINGS: Mapping[str, Finding] = {each.name: each for each in _ALL}


def find(name: str) -> Finding:
    """Return a finding by its name."""
    if name not in FINDINGS:
        raise InputError(f"no figure '{name}'; {did_you_mean(name, FINDINGS)}")
    return FINDINGS[name]
