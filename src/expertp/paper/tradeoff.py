"""Fig. 5, Finding 3.1: more experts or larger experts, at the same number of parameters.

The first two studies compare the experts and alpha axes at their largest common scale. The third cuts the same active
model into more and more, smaller and smaller experts.
"""

from expertp.analysis.paired import paired
from expertp.figures import expert_shape
from expertp.figures.labels import summarize
from expertp.figures.save import Drawing, render
from expertp.paper import granularity, zero_shot
from expertp.paper.finding import Criteria, Finding, Outcome, Tables, is_positive, joint_models, zero_shot_study

CLAIM = "At a fixed number of parameters, more experts are better than larger experts."
CRITERIA = Criteria(
    paper="At the largest common scale of two studies, more experts have a lower median loss than larger experts. With "
    f"a fixed active model: {granularity.CRITERIA.paper}",
    ours="At the largest common scale of two studies, more experts have a significantly lower loss than larger "
    f"experts. With a fixed active model: {granularity.CRITERIA.ours}",
)

# The same active model, cut into more and more experts.
EXPERTS: dict[str, dict[str, float]] = {
    "E4A1": {"n_exp": 4, "n_act": 1, "alpha_ffn": 4},
    "E8A2": {"n_exp": 8, "n_act": 2, "alpha_ffn": 2},
    "E16A4": {"n_exp": 16, "n_act": 4, "alpha_ffn": 1},
    "E32A8": {"n_exp": 32, "n_act": 8, "alpha_ffn": 1 / 2},
}

STUDY = zero_shot_study(
    "granularity",
    cpu={
        "train": {"steps": 1200, "schedule": "cosine", "eval_every": 1200},
        "joint": joint_models(EXPERTS),
        "seeds": [0, 1, 2, 3],
    },
    paper={
        "train": {"steps": 10000, "schedule": "cosine"},
        "joint": joint_models(EXPERTS, n_embd=768, n_layer=12),
        "seeds": [0, 1, 2],
    },
)


def decide(tables: Tables) -> Outcome:
    """Compare experts with expert size along both axes of two studies, and at a fixed active model."""
    drawings, parts, medians, measured = list[Drawing](), list[bool | None](), list[bool | None](), list[str]()
    for name in (zero_shot.QUARTER.name, zero_shot.TWELFTH.name):
        table = tables[name]
        drawings.append(render(f"expert-shape-{name}", expert_shape.draw, expert_shape.data(table)))
        more = table.sizes("experts")[-1]
        larger = next(size for size in table.sizes("alpha") if size.scale == more.scale)
        of_larger, of_more = (
            table.zero_shot(axis, size, table.own) for axis, size in (("alpha", larger), ("experts", more))
        )
        gain = paired(of_larger, of_more)
        parts.append(is_positive(gain))
        ends = [summarize(losses).median for losses in (of_more, of_larger)]
        medians.append(None if ends[0] is None or ends[1] is None else ends[0] < ends[1])
        by, single = f"{more.scale:g}x", " (one active expert)" if larger.model.n_act == 1 else ""
        measured.append(f"{name}: loss with experts {by} as large{single} minus loss with {by} as many {gain}")
    fixed = granularity.compare_granularity(tables[STUDY.name])
    return Outcome(
        parts=[*parts, *fixed.parts],
        paper_parts=[*medians, *fixed.paper_parts],
        number="; ".join([*measured, fixed.number]),
        why=fixed.why,
        drawings=(*drawings, *fixed.drawings),
    )


FINDING = Finding(
    "tradeoff", "Fig. 5, Finding 3.1", CLAIM, CRITERIA, (zero_shot.QUARTER, zero_shot.TWELFTH, STUDY), decide
)
