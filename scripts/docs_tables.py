"""Render the rules and options as markdown, so that no page restates what code holds.

A page marks a generated block with `<!-- NAME:begin -->` and `<!-- NAME:end -->`, each on its own line; the names are
those of `BLOCKS`. `python scripts/docs_tables.py docs/*.md README.md` rewrites the blocks of these files. Blocks named
`measured-...` hold stored measurements; the benchmark that made them fills them.
"""

import csv
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin

from expertp.adapters.families import FAMILIES, REFUSED
from expertp.adapters.family import Family
from expertp.adapters.spec import HFModelSpec
from expertp.errors import InputError
from expertp.plan import constant_names
from expertp.rules import CONSTANT_FAMILIES, EXPERTP, ONE, PAPER_CONSTANTS, RULE_SETS, Monomial, Row, RuleSet
from expertp.spec import BaseHPs, ModelSpec, ParallelSpec, Spec, TrainSpec
from expertp.study.spec import (
    ArmSpec,
    AxisSpec,
    ChoiceSpec,
    GridSpec,
    JointSpec,
    RefinementSpec,
    StudySpec,
    VerdictSpec,
)

ROOT = Path(__file__).parents[1]
HP_SHORT = {"log2_lr": "lr", "log2_init_std": "init std"}
RULE_COLUMNS = ("group", "init std", "lr", "weight decay", "Adam eps, consistent", "Adam eps, paper")
FORWARD_PLACES = {
    "residual": "block outputs, before they are added to the residual stream",
    "logits": "logits, with tied and untied embeddings",
    "attention_scale": "attention scores q.k",
    "moe_output": "sum over a token's experts",
}
AS_IN_EXPERTP = "·"
EXTRACT = ("embedding", "router", "expert_up", "expert_down")
NATIVE = (
    "For [models of transformers](any_model.md) only: the init of the family's own code, with `initializer_range` at "
    "`sigma`, and `eta`, `lambda` and `eps` for all tensors. There are no multipliers. Norms and biases have no weight "
    "decay."
)
BLOCK = re.compile(
    r"(?P<begin>^<!-- (?P<name>[a-z-]+):begin -->\n).*?(?P<end>^<!-- (?P=name):end -->$)", re.MULTILINE | re.DOTALL
)


def rules_tables() -> str:
    """Return the default rule set: one row per parameter group, then the forward multipliers."""
    rows = [(*rule_cells(group, row), row.where) for group, row in EXPERTP.rows.items()]
    forward = [(f"`{name}`", place, _code(getattr(EXPERTP.forward, name))) for name, place in FORWARD_PLACES.items()]
    return "\n\n".join(
        [
            markdown_table((*RULE_COLUMNS, "in the paper"), rows),
            markdown_table(("forward multiplier", "on", "value"), forward),
        ]
    )


def rules_extract() -> str:
    """Return init and lr of four groups, for the README."""
    rows = [(*rule_cells(group, EXPERTP.rows[group])[:3], EXPERTP.rows[group].where) for group in EXTRACT]
    return markdown_table((*RULE_COLUMNS[:3], "in the paper"), rows)


def rule_set_tables() -> str:
    """Return the other rule sets, each as its differences from the default one."""
    parts = []
    for name, rules in RULE_SETS.items():
        if rules is EXPERTP:
            continue
        parts.append(f"`rules: {name}`")
        if rules.is_native:
            parts.append(NATIVE)
            continue
        different = _different_rows(rules)
        parts.append(markdown_table(RULE_COLUMNS, different) if different else "All groups: as in `expertp`.")
        forward = [
            f"{place}: {_code(getattr(rules.forward, field))}"
            for field, place in FORWARD_PLACES.items()
            if getattr(rules.forward, field) != getattr(EXPERTP.forward, field)
        ]
        parts.append(f"Forward multipliers that differ: {'; '.join(forward) or 'none'}.")
    return "\n\n".join(parts)


def constants_table() -> str:
    """Return the families of constant multipliers, the groups they reach and the `paper` preset."""
    known = set(constant_names())
    rows = []
    for family, groups in CONSTANT_FAMILIES.items():
        names = [f"{family}_{what}" for what in ("init", "lr") if f"{family}_{what}" in known]
        if not names:
            continue
        preset = [f"{name}: {Fraction(PAPER_CONSTANTS[name])}" for name in names if name in PAPER_CONSTANTS]
        rows.append((_codes(names), _codes(groups), _codes(preset)))
    return markdown_table(("names", "groups", "set by `constants: paper`"), rows)


def options_table(spec: type[Spec]) -> str:
    """Return the fields of a spec with their defaults, choices and descriptions."""
    rows = []
    for name, field in spec.model_fields.items():
        default = "required" if field.is_required() else f"`{_yaml(field.get_default(call_default_factory=True))}`"
        rows.append((f"`{name}`", default, _codes(_choices(field.annotation)), field.description or ""))
    return markdown_table(("key", "default", "choices", "meaning"), rows)


def families_table() -> str:
    """Return the families of models, with the facts that the adapters use."""
    rows = []
    for name, family in FAMILIES.items():
        down = next(row for row in family.rows if row.role == "expert_down")
        writers = dict.fromkeys(row.role for row in family.rows if row.writes and not row.role.endswith("_bias"))
        rows.append(
            (
                f"`{name}`",
                _gate(family),
                family.selection or "none",
                "yes" if family.auxiliary_loss else "none",
                _codes(writers),
                f"`{' '.join(map(str, down.axes))}`",
                _codes(native.key for native in family.native),
            )
        )
    head = (
        "model_type",
        "gate",
        "selection bias on",
        "auxiliary loss",
        "block outputs: folded into",
        "experts' down",
        "config multipliers",
    )
    return markdown_table(head, rows)


def refused_table() -> str:
    """Return the families that are refused, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for name, reason in REFUSED.items():
        reasons.setdefault(reason, []).append(name)
    return markdown_table(("model_type", "reason"), [(_codes(names), reason) for reason, names in reasons.items()])


def _gate(family: Family) -> str:
    """Return the gate of a family, as it depends on its configuration."""
    found = {
        (function, normalized): family.gate(SimpleNamespace(norm_topk_prob=normalized, expert_selection_fn=function))
        for function in ("softmax", "sigmoid")
        for normalized in (False, True)
    }
    without, with_norm = found["sigmoid", False], found["sigmoid", True]
    if without == with_norm:
        return without
    condition = "`norm_topk_prob`"
    if found["softmax", False] != without:
        condition += " or `expert_selection_fn: softmax`"
    return f"{without}; {with_norm} with {condition}"


def power_table() -> str:
    """Return how often the verdict is right, by the true cost of zero-shot: means over curves, and the range."""
    rows, names = _rows("power"), ("TRANSFERS", "FAILS", "UNDECIDED", "covered", "drift_covered")
    cells = []
    for multiple in dict.fromkeys(row["true_cost_over_tolerance"] for row in rows):
        mine = [row for row in rows if row["true_cost_over_tolerance"] == multiple]
        found = {name: [float(row[name]) for row in mine] for name in names}
        shown = [f"{statistics.fmean(rates):.3f} ({min(rates):.2f} to {max(rates):.2f})" for rates in found.values()]
        cells.append((f"{float(multiple):g} x tolerance", *shown))
    head = ("true cost of zero-shot", *names[:3], "cost within its interval", "drift within its interval")
    return markdown_table(head, cells)


def power_present_table() -> str:
    """Return how often the verdict is right on each curve of the present profile, by design."""
    rows = _rows("power-present")
    by_cost = {
        (row["study"], row["hp"], row["axis"], row["design"], float(row["true_cost_over_tolerance"])): row
        for row in rows
    }
    cells = []
    for study, hp, axis, design in dict.fromkeys(place[:4] for place in by_cost):
        zero, twice = (by_cost[study, hp, axis, design, multiple] for multiple in (0.0, 2.0))
        shown = (f"{float(row[name]):.3f}" for row, name in (
            (zero, "TRANSFERS"), (twice, "TRANSFERS"), (twice, "FAILS"), (zero, "covered"), (twice, "covered"),
        ))  # fmt: skip
        cells.append((study, HP_SHORT[hp], axis, design, *shown, zero["seeds"], twice["seeds"]))
    head = ("study", "of", "axis", "design", "TRANSFERS at 0", "TRANSFERS at 2x", "FAILS at 2x")
    return markdown_table((*head, "covered at 0", "covered at 2x", "seeds at 0", "seeds at 2x"), cells)


def drift_cost_table() -> str:
    """Return what a drift of half an octave per doubling costs on recorded curves."""
    cells = [
        (row["study"], HP_SHORT[row["hp"]], row["axis"], row["tolerance"], row["cost_at_2x"], row["cost_at_4x"])
        for row in _rows("drift-cost")
    ]
    return markdown_table(("study", "of", "axis", "tolerance at 4x", "cost at 2x, nats", "cost at 4x, nats"), cells)


def early_stopping_table() -> str:
    """Return how many later winners and losers the rule of adaptive sweeps would stop, and rules chosen otherwise."""
    names = ("chosen on", "tested on", "winning runs", "pairs of winners", "winners stopped", "losers stopped")
    head = (*names[:3], "their pairs", *names[4:], "below zero-shot", "FLOPs saved")
    columns = (*names, "stopped below zero-shot", "FLOPs saved")
    shown = [row for row in _rows("early-stopping") if row["tested on"].startswith("all")]
    return markdown_table(head, [[row[name] for name in columns] for row in shown])


def adaptive_table() -> str:
    """Return the verdicts of adaptive sweeps beside those of the full grid, on recorded studies."""
    head = ("study", "axis", "of", "full grid", "adaptive", "share of FLOPs", "stopped", "saved")
    cells = [
        (row["study"], row["axis"], HP_SHORT[row["hp"]], *(row[name] for name in head[3:])) for row in _rows("adaptive")
    ]
    return markdown_table(head, cells)


def adaptive_synthetic_table() -> str:
    """Return verdicts and cost of adaptive sweeps without a budget, by the true cost of zero-shot."""
    rows = _rows("adaptive-synthetic")
    names = ("TRANSFERS", "FAILS", "UNDECIDED", "share of FLOPs", "median", "looks", "saved")
    cells = []
    for multiple in dict.fromkeys(row["true_cost_over_tolerance"] for row in rows):
        mine = [row for row in rows if row["true_cost_over_tolerance"] == multiple]
        means = [statistics.fmean(float(row[name]) for row in mine) for name in names]
        wrong = "FAILS" if float(multiple) < 1 else "TRANSFERS"
        studies = sum(int(row["studies"]) for row in mine)
        errors = sum(round(float(row[wrong]) * int(row["studies"])) for row in mine)
        shown = (f"{mean:.3g}" for mean in means)
        cells.append((f"{float(multiple):g} x tolerance", error_rate(errors, studies), *shown))
    head = ("true cost of zero-shot", "wrong", *names[:4], "median share", "looks", "saved")
    return markdown_table(head, cells)


def error_rate(errors: int, cases: int) -> str:
    """Write how often something went wrong, with the exact one-sided 95% bound of its rate (Clopper and Pearson 1934).

    >>> error_rate(1, 120), error_rate(0, 120)
    ('1 of 120 (at most 3.9%)', '0 of 120 (at most 2.5%)')
    """
    from scipy.special import betaincinv

    bound = 1.0 if errors == cases else float(betaincinv(errors + 1, cases - errors, 0.95))
    return f"{errors} of {cases} (at most {bound:.1%})"


def _rows(name: str) -> list[dict[str, str]]:
    with (ROOT / f"docs/results/verdict/{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


BLOCKS: Mapping[str, Callable[[], str]] = {
    "rules": rules_tables,
    "rules-extract": rules_extract,
    "rule-sets": rule_set_tables,
    "constants": constants_table,
    "hps": lambda: options_table(BaseHPs),
    "model": lambda: options_table(ModelSpec),
    "hf-model": lambda: options_table(HFModelSpec),
    "train": lambda: options_table(TrainSpec),
    "parallel": lambda: options_table(ParallelSpec),
    "study": lambda: options_table(StudySpec),
    "axis": lambda: options_table(AxisSpec),
    "joint": lambda: options_table(JointSpec),
    "grids": lambda: options_table(GridSpec),
    "arm": lambda: options_table(ArmSpec),
    "refinement": lambda: options_table(RefinementSpec),
    "choice": lambda: options_table(ChoiceSpec),
    "verdict": lambda: options_table(VerdictSpec),
    "families": families_table,
    "refused": refused_table,
    "power": power_table,
    "power-present": power_present_table,
    "drift-cost": drift_cost_table,
    "early-stopping": early_stopping_table,
    "adaptive": adaptive_table,
    "adaptive-synthetic": adaptive_synthetic_table,
}


def rule_cells(group: str, row: Row) -> tuple[str, str, str, str, str, str]:
    """Return the cells of one group, in the order of `RULE_COLUMNS`."""
    start = {"zero": "0", "gain": "gain 1, bias 0"}
    return (
        f"`{group}`",
        start[row.start] if row.init is None else _code(row.init, "sigma"),
        _code(row.lr, "eta_bias" if group == "expert_bias" else "eta"),
        _code(1 / row.lr, "lambda") if row.decays else "none",
        "not in Adam" if row.eps is None else _code(row.eps, "eps"),
        "not in Adam" if row.eps_paper is None else _code(row.eps_paper, "eps"),
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table.

    >>> print(markdown_table(("a", "b"), [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def fill_blocks(text: str, blocks: Mapping[str, Callable[[], str]] = BLOCKS) -> str:
    """Return a page with every generated block up to date; text outside the markers stays as it is."""

    def filled(block: re.Match[str]) -> str:
        name = block["name"]
        if name.startswith("measured-") and name not in blocks:
            return block[0]
        if name not in blocks:
            raise InputError(f"unknown block '{name}'; known are {', '.join(blocks)}")
        return f"{block['begin']}{blocks[name]()}\n{block['end']}"

    return BLOCK.sub(filled, text)


def _different_rows(rules: RuleSet) -> list[tuple[str, ...]]:
    """Return rows of cells that differ from the default rule set; groups that differ alike share a row."""
    groups_of: dict[tuple[str, ...], list[str]] = {}
    for group, row in rules.rows.items():
        _, *ours = rule_cells(group, row)
        _, *usual = rule_cells(group, EXPERTP.rows[group])
        cells = tuple(cell if cell != other else AS_IN_EXPERTP for cell, other in zip(ours, usual, strict=True))
        if set(cells) != {AS_IN_EXPERTP}:
            groups_of.setdefault(cells, []).append(group)
    return [(_codes(groups), *cells) for cells, groups in groups_of.items()]


def _code(rule: Monomial, quantity: str = "") -> str:
    factor = "" if quantity and rule == ONE else str(rule)
    return f"`{' '.join(part for part in (quantity, factor) if part)}`"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _choices(annotation: object) -> list[str]:
    """Return the strings that a field takes, be they all or only some of its values."""
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    return [choice for part in get_args(annotation) for choice in _choices(part)]


def _yaml(value: object) -> str:
    """Write a default as YAML reads it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Spec):
        return str(value.to_dict())
    return str(list(value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def main(paths: Sequence[str]) -> None:
    """Rewrite the generated blocks of the given files."""
    for path in map(Path, paths):
        path.write_text(fill_blocks(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
