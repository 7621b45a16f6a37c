"""Fig. 5, Finding 3.1: more experts or larger experts, at the same number of parameters.

The first two studies compare the experts and alpha axes at their largest common scale. The third cuts the same active
model into more and more, smaller and smaller experts.

Criterion: more experts have the significantly lower loss in all three comparisons.
"""

from expertp.analysis.paired import paired
from expertp.figures import expert_shape
from expertp.figures.save import render
from expertp.paper import transfer_quarter, transfer_twelfth
from expertp.paper.finding import Finding, Outcome, Tables, is_positive, joint_models, zero_shot_study
from expertp.paper.granularity import compare_granularity

CLAIM = "At a fixed number of parameters, more experts are better than larger experts."

# The same active model, cut into more and more experts.
EXPERTS: dict[str, dict[str, float]] = {
    "E4A1": {"alpha_ffn": 4},
    "E8A2": {"n_exp": 8, "n_act": 2, "alpha_ffn": 2},
    "E16A4": {"n_exp": 16, "n_act": 4},
    "E32A8": {"n_exp": 32, "n_act": 8, "alpha_ffn": 1 / 2},
}

STUDY = zero_shot_study(
    "granularity",
    cpu={
        "train": {"steps": 600, "schedule": "cosine", "eval_every": 600},
        "joint": joint_models(EXPERTS, n_embd=128),
    },
    paper={
        "train": {"steps": 10000, "schedule": "cosine"},
        "joint": joint_models(EXPERTS, n_embd=768, n_layer=12),
        "seeds": [0, 1, 2],
    },
)


def decide(tables: Tables) -> Outcome:
    """Compare experts with expert size along both axes of two studies, and at a fixed active model."""
    drawings, parts, measured = [], [], []
    for name in (transfer_quarter.STUDY.name, transfer_twelfth.STUDY.name):
        table = tables[name]
        drawings.append(render(f"expert-shape-{name}", expert_shape.draw, expert_shape.data(table)))
        more = table.sizes("experts")[-1]
        larger = next(size for size in table.sizes("alpha") if size.scale == more.scale)
        gain = paired(table.zero_shot("alpha", larger, table.own), table.zero_shot("experts", more, table.own))
        parts.append(is_positive(gain))
        by = f"{more.scale:g}x"
        measured.append(f"{name}: loss with experts {by} as large minus loss with {by} as many {gain}")
    fixed = compare_granularity(tables[STUDY.name])
    return Outcome(
        parts=[*parts, *fixed.parts],
        number="; ".join([*measured, fixed.number]),
        why=fixed.why,
        drawings=(*drawings, *fixed.drawings),
    )


FINDING = Finding(
    "tradeoff", "Fig. 5, Finding 3.1", CLAIM, (transfer_quarter.STUDY, transfer_twelfth.STUDY, STUDY), decide
)
