"""Fig. 19, appendix E: networks with soft routers approach the mean-field limit, along three ways of scaling.

The paper does not solve this limit; `theory` does.
"""

from expertp.figures.save import render
from expertp.paper.finding import Criteria, Finding, Outcome, Tables

CLAIM = "The loss of networks with soft routers converges to the mean-field limit along three ways of scaling."

# Largest relative distance of the largest networks to the limit.
CLOSE = 0.05
CRITERIA = Criteria(
    paper="Along each way, the networks' mean loss is nearer to the limit at the largest size than at the smallest.",
    ours="Along each way, the distance of the networks' mean loss to the limit falls from the smallest to the largest "
    f"size, to {CLOSE:.0%} or less.",
)


def decide(_: Tables) -> Outcome:
    """Solve the limit, and compare networks of growing size with it."""
    from expertp.figures.theory import soft_router as figure  # imports torch
    from expertp.theory.soft_router import WAYS, soft_router

    found = soft_router()
    distances = [
        (comparison.error_of_mean(way.sizes[0]), comparison.error_of_mean(way.sizes[-1]))
        for way, comparison in zip(WAYS, found, strict=True)
    ]
    listed = "; ".join(
        f"{way.title}: {first:.1%} to {last:.1%}" for way, (first, last) in zip(WAYS, distances, strict=True)
    )
    return Outcome(
        parts=[last <= CLOSE and last < first for first, last in distances],
        paper_parts=[last < first for first, last in distances],
        number=f"distance of the networks' mean loss to the limit, from the smallest to the largest size: {listed}",
        why=f"The distance must fall, to {CLOSE:.0%} or less. The distribution of p narrows as n_hid grows, so the "
        "figure compares each size with the theory at its own n_hid.",
        drawings=(render("soft-router", figure.draw, figure.data(WAYS, found)),),
    )


FINDING = Finding("soft-router", "Fig. 19, appendix E", CLAIM, CRITERIA, (), decide)
