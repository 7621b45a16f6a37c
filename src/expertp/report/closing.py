"""The sections that come with every report: coordinate check, theory, plan, failures, environment, commands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from expertp.coordcheck.slopes import HEADINGS
from expertp.errors import InputError
from expertp.figures.labels import signed
from expertp.figures.save import inline_svg, to_csv
from expertp.plan import Plan
from expertp.report.planned import plan_for, plan_json, plan_table, torch_code
from expertp.report.reading import Reading
from expertp.report.views import Item, Listing, Missing, Note, Picture, Section, Table
from expertp.study_store import DONE
from expertp.theory.finite import Size
from expertp.wording import describe

MOST_ROWS_OPEN = 12


def coordinate_check(reading: Reading) -> Section:
    """Show what `expertp coordcheck` has left, or say how to have it."""
    items: list[Item] = []
    for name in ("coordcheck", *(f"coordcheck-{rules}" for rules in reading.study.contrasts)):
        items += _one_check(reading.directory.path / name, name)
    return Section(
        "coordcheck",
        "Do activations keep their size?",
        "Sizes of activations, and of what training adds to them, should not depend on scale. A passing check with "
        "failing transfer is common: the verdict at the top decides.",
        tuple(items) or (Missing("The coordinate check has not been made.", reading.command("coordcheck")),),
        "8",
    )


@contextmanager
def _made_by(verb: str, record: Path) -> Iterator[None]:
    """Say what to do about a record that cannot be read."""
    try:
        yield
    except (ValueError, LookupError, TypeError):
        raise InputError(f"{record}: is damaged; make it again with `expertp {verb}`, or delete it") from None


def _one_check(folder: Path, name: str) -> list[Item]:
    record, drawing = folder / "coordcheck.json", folder / "coordcheck.svg"
    if not (record.exists() and drawing.exists()):
        return []
    with _made_by("coordcheck", record):
        return _checked(json.loads(record.read_text(encoding="utf-8")), drawing.read_text(encoding="utf-8"), name)


def _checked(found: Mapping[str, Any], svg: str, name: str) -> list[Item]:
    slopes = found["slopes"]
    verdicts = Counter(slope["verdict"] for slope in slopes)
    caption = (
        f"Rules {found['rules']}, {found['steps']} steps: sizes relative to the base's over scale. Thick: a slope "
        "outside its tolerance."
    )
    counts = (
        f"n = {max((slope['seeds'] for slope in slopes), default=0)} seeds a size; {len(slopes)} slopes: "
        f"{verdicts['PASS']} as expected, {verdicts['FAIL']} not; {len(found['diverged'])} runs diverged"
    )
    title = f"Coordinate check of {found['rules']}"
    inline = inline_svg(svg[svg.index("<svg") :], name, title, f"{caption} {counts}.")
    return [Picture(name, inline, caption, counts, to_csv(slopes)), _slope_table(slopes)]


def _slope_table(slopes: Sequence[Mapping[str, Any]]) -> Table:
    """Return measured beside expected slopes, a row per axis and module."""
    by_place: dict[tuple[str, str], dict[str, str]] = {}
    for slope in slopes:
        by_place.setdefault((slope["axis"], slope["module"]), {})[slope["check"]] = _slope(slope)
    rows = [(axis, module, *(cells.get(check, "") for check in HEADINGS)) for (axis, module), cells in by_place.items()]
    caption = "Measured slopes ± standard error over seeds, and in brackets what is expected"
    return Table(
        caption,
        ("axis", "module", *(each.replace("-", "\N{MINUS SIGN}") for each in HEADINGS.values())),
        tuple(rows),
        numeric=4,
        is_folded=True,
    )


def _slope(slope: Mapping[str, Any]) -> str:
    low, high = (f"{slope[end]:g}".replace("-", "\N{MINUS SIGN}") for end in ("low", "high"))
    expected = low if low == high else f"{low} to {high}"
    if slope["slope"] is None:
        return f"– ({expected})"
    error = "" if slope["standard_error"] is None else f" ± {slope['standard_error']:.2f}"
    mark = " ✗" if slope["verdict"] == "FAIL" else ""
    return f"{signed(slope['slope'], 2)}{error} ({expected}){mark}"


def theory(reading: Reading) -> Section:
    """Show what `expertp theory compare` has left, or say how to have it."""
    folder = reading.directory.path / "theory"
    command = f"expertp theory compare {reading.out_option('theory')}"
    return Section(
        "theory",
        "What does theory say?",
        "The mean-field limit of a deep residual MoE under gradient descent, and finite networks that approach it: why "
        "there is something to transfer to. It has no attention, no Adam and data of its own.",
        tuple(_theory_pictures(folder)) or (Missing("The theory has not been solved here.", command),),
        "11",
    )


THEORY_PICTURES = {
    "loss": ("Loss of networks and of the limit", "Lines: networks, mean over seeds; dashed: the limit."),
    "router": ("Law of the router over experts", "Density of p at the last step; outline: the theory's."),
    "error": ("Distance to the limit over size", "Root mean square over seeds, with fitted slopes."),
    "kernels": ("Kernels of the stream over pairs of steps", "The limit's, and below those of the largest networks."),
}


def _theory_pictures(folder: Path) -> list[Item]:
    record = folder / "compare.json"
    if not record.exists():
        return []
    with _made_by("theory compare", record):
        return _compared(json.loads(record.read_text(encoding="utf-8")), folder)


def _compared(found: Mapping[str, Any], folder: Path) -> list[Item]:
    networks, items = found["networks"], list[Item]()
    counts = (
        f"n = {networks[0]['seeds']} networks a size, {len(networks)} sizes; Monte-Carlo error of the limit "
        f"{100 * (found['theory']['mc_error'] or 0):.2g}%"
    )
    for name, (title, caption) in THEORY_PICTURES.items():
        drawing, numbers = folder / f"{name}.svg", folder / f"{name}.csv"
        if drawing.exists() and numbers.exists():
            svg = drawing.read_text(encoding="utf-8")
            inline = inline_svg(svg[svg.index("<svg") :], f"theory-{name}", title, f"{caption} {counts}.")
            items.append(Picture(f"theory-{name}", inline, caption, counts, numbers.read_text(encoding="utf-8")))
    rows = [
        (str(Size(each["N"], each["E"], each["n_hid"])), f"{each['error']:.2%}", f"{each['error_of_mean']:.2%}")
        for each in networks
    ]
    header = ("networks", "one network", "their mean")
    return [*items, Table("Distance of f to the limit over data and steps", header, tuple(rows), numeric=2)]


def plan_section(reading: Reading) -> Section:
    """Show what the study's largest model is set to, to be copied."""
    made: Plan = plan_for(reading.study, reading.largest)
    forward = made.forward
    experts = "" if forward.moe_output is None else f", sum over active experts × {forward.moe_output:g}"
    title = f"Target: {describe(made.target)}. Base: {describe(made.base)}. Rules: {made.hps.rules}."
    return Section(
        "plan",
        "The plan for the largest model",
        f"Target: {describe(made.target)}.",
        (
            plan_table(made),
            Note(
                f"Forward: block outputs × {forward.residual:.4g}, logits × {forward.logits:.4g}, attention scores q·k "
                f"× {forward.attention_scale:.4g}{experts}. Norms start at gain 1, bias 0; expert biases are not in "
                "Adam."
            ),
            Listing("plan-json", "Plan as JSON", plan_json(made), is_folded=True),
            Listing("plan-torch", "Parameter groups in torch", torch_code(made, title), is_folded=True),
        ),
    )


def failures(reading: Reading) -> Section:
    """List every run that has failed or diverged."""
    rows = [
        (
            reading.directory.place(result.identity).name,
            result.status,
            f"step {result.step} of {result.run.train.steps}" if result.status == "diverged" else "",
            result.error or ("loss above the limit, or not finite" if result.status == "diverged" else ""),
        )
        for result in sorted(reading.results, key=lambda each: (each.status != "failed", each.identity))
        if result.status in ("failed", "diverged")
    ]
    item: Item = Note("No run has failed or diverged.")
    if rows:
        item = Table(
            f"{len(rows)} runs that failed or diverged",
            ("run", "status", "where", "why"),
            tuple(rows),
            is_folded=len(rows) > MOST_ROWS_OPEN,
        )
    lead = f"{reading.counts()}. Diverged runs stay in every figure that they belong to."
    return Section("failures", "Failures", lead, (item,))


def environment(reading: Reading) -> Section:
    """Say what the runs ran on."""
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for result in reading.results:
        if result.status in DONE and (run := reading.directory.directory(result.identity)):
            found[tuple(sorted((name, str(value)) for name, value in run.environment.items()))] += 1
    names = sorted({name for each in found for name, _ in each})
    rows = [(*(dict(each).get(name, "–") for name in names), str(count)) for each, count in found.most_common()]
    items: list[Item] = [Note("No run has ended yet.")]
    if rows:
        items = [Table("Where the runs that have ended began", (*names, "runs"), tuple(rows), numeric=1)]
    train, seconds = reading.study.train, sum(result.seconds or 0 for result in reading.results)
    facts = (
        f"Data {train.data}, content hash {reading.directory.data_hash[:16]}. Compute type {train.dtype}, schedule "
        f"{train.schedule}, {train.warmup_steps} warm-up steps, batches of {train.batch_tokens} tokens. Training took "
        f"{seconds / 3600:.2f} hours of one worker in all."
    )
    return Section("environment", "Environment", facts, tuple(items))


def commands(reading: Reading) -> Section:
    """Give what repeats all of this."""
    path = reading.directory.path
    lines = [
        f"expertp prepare SOURCE --out {reading.study.train.data}   # SOURCE, tokenizer: see that directory",
        reading.command("sweep"),
        reading.command("coordcheck"),
        f"expertp report {path}",
    ]
    study = json.dumps(reading.study.to_tree(), indent=2)
    return Section(
        "commands",
        "Commands",
        "STUDY.yaml is the study below; YAML reads JSON.",
        (
            Listing("commands-text", "All of it again", "\n".join(lines)),
            Listing("study-text", "The study file", study, is_folded=True),
        ),
    )
