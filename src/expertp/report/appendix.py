"""Sections of a report without figures of runs: coordinate check, theory, plan, failures, environment, commands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from expertp.coordcheck.records import CheckRecord
from expertp.coordcheck.slopes import HEADINGS, Slope
from expertp.errors import DamagedError
from expertp.figures.labels import minus, signed
from expertp.figures.save import file_name, inline_svg, to_csv
from expertp.report import commands as suggested
from expertp.report.elements import Item, Listing, Missing, Note, Picture, Section, Table
from expertp.report.planned import plan_for, plan_items
from expertp.report.reading import Reading
from expertp.study.load import build_study
from expertp.study.table import DONE, Result
from expertp.util.records import read_bounded, read_record
from expertp.util.text import plural

if TYPE_CHECKING:
    from expertp.theory.records import ComparisonRecord

_Record = TypeVar("_Record")
MOST_ROWS_OPEN = 12
# Statuses of runs that the section of failures lists, and their order.
LISTED = {"failed": 0, "damaged": 0, "diverged": 1, "stopped": 2}
# Fields of a study that a coordinate check depends on.
CHECKED = ("base", "hps", "train", "axes", "joint", "seeds", "arms", "allow_kappa_change")
# How to read the figure of a coordinate check.
EXPLAINED = (
    "The colour of a line is its expected slope, which the dotted line of that colour shows. Some sizes are expected "
    "to shrink, so a line that falls is not wrong by itself. The shaded area of a colour holds the slopes within the "
    "tolerance, which allows for finite sizes and few steps. Thick red lines are outside of their area: these modules "
    "do not scale as the rules expect."
)


THEORY_PICTURES = {
    "loss": ("Loss of networks and of the limit", "Lines: networks, mean over seeds; dashed: the limit."),
    "router": ("Law of the router over experts", "Density of p at the last step; outline: the theory's."),
    "error": ("Distance to the limit over size", "Root mean square over seeds, with fitted slopes."),
    "kernels": ("Kernels of the stream over pairs of steps", "The limit's, and below those of the largest networks."),
}


def coordinate_check(reading: Reading) -> Section:
    """Section 8: the result of `expertp coordcheck`, or the command that makes it."""
    path, items = reading.directory.path, list[Item]()
    for name in _check_names(reading):
        drawing = path / name / "coordcheck.svg"
        if drawing.exists():
            items += _stored(drawing.with_suffix(".json"), CheckRecord, "coordcheck", partial(_checked, drawing, name))
    return Section(
        "coordcheck",
        "Do activations keep their size?",
        "The coordinate check measures how the sizes of activations, and of their updates in training, depend on "
        "scale, and compares the slopes with those expected from the rules. A passing check does not imply transfer: "
        "the verdict at the top decides.",
        tuple(items) or (Missing("The coordinate check has not been run.", suggested.coordcheck(path)),),
        "8",
    )


def _check_names(reading: Reading) -> list[str]:
    """Return the folders of coordinate checks: the study's own, and one for each other arm."""
    return ["coordcheck", *(file_name(f"coordcheck-{arm}") for arm in reading.study.arms)]


def theory(reading: Reading) -> Section:
    """Section 11: the result of `expertp theory compare`, or the command that makes it."""
    path, items = reading.directory.path, list[Item]()
    if (record := path / "theory" / "compare.json").exists():
        from expertp.theory.records import ComparisonRecord  # imports torch

        items = _stored(record, ComparisonRecord, "theory compare", partial(_compared, path / "theory"))
    return Section(
        "theory",
        "What does theory say?",
        "Hyperparameters can transfer because networks approach a limit as they grow. The theory solves this "
        "mean-field limit for a deep residual MoE without attention, trained by gradient descent on synthetic data, "
        "and compares it with finite networks.",
        tuple(items) or (Missing("The theory has not been solved for this report.", suggested.theory(path)),),
        "11",
    )


def _stored(record: Path, kind: type[_Record], verb: str, shown: Callable[[_Record], list[Item]]) -> list[Item]:
    """Return what is shown of a record that a verb has written; nothing where there is none."""
    if not record.exists():
        return []
    found = _read(record, kind, verb)
    try:
        return shown(found)
    except DamagedError:
        raise
    except (ValueError, LookupError) as error:  # of a figure beside the record
        raise DamagedError(f"{record.parent}: a file is damaged ({error}); {_again(verb)}") from None


def _read(record: Path, kind: type[_Record], verb: str) -> _Record:
    return read_record(record, kind, _again(verb))


def _again(verb: str) -> str:
    return f"write it again with `expertp {verb}`, or delete it"


def _text(path: Path) -> str:
    return read_bounded(path, f"delete {path.parent.name} and write it again").decode()


def _picture(drawing: Path, name: str, title: str, caption: str, counts: str, csv: str) -> Picture:
    svg = inline_svg(_text(drawing), name, title, f"{caption} {counts}.")
    return Picture(name, svg, caption, counts, csv)


def _checked(drawing: Path, name: str, found: CheckRecord) -> list[Item]:
    verdicts = Counter(slope.verdict for slope in found.slopes)
    caption = (
        f"Sizes of activations and of their updates relative to the base, over scale, with the rules {found.rules} and "
        f"{plural(found.steps, 'training step')}. "
    )
    # The legend of a figure that an earlier version has drawn does not name the expected slopes.
    is_explained = "expected slope" in _text(drawing)
    caption += EXPLAINED if is_explained else "The same `expertp coordcheck` again draws the expected slopes too."
    counts = (
        f"n = {plural(max((slope.seeds for slope in found.slopes), default=0), 'seed')} per size; "
        f"{plural(len(found.slopes), 'slope')}: {verdicts['PASS']} within tolerance, {verdicts['FAIL']} outside; "
        f"{plural(len(found.diverged), 'diverged run')}"
    )
    csv = to_csv(asdict(slope) for slope in found.slopes)
    title = f"Coordinate check of {found.rules}"
    return [_picture(drawing, name, title, caption, counts, csv), _slope_table(found.slopes)]


def _compared(folder: Path, found: ComparisonRecord) -> list[Item]:
    items = list[Item]()
    counts = (
        f"n = {plural(found.networks[0].seeds, 'network')} per size, {plural(len(found.networks), 'size')}; "
        f"Monte-Carlo error of the limit "
        f"{100 * (found.theory.mc_error or 0):.2g}%"
    )
    for name, (title, caption) in THEORY_PICTURES.items():
        drawing, numbers = folder / f"{name}.svg", folder / f"{name}.csv"
        if drawing.exists() and numbers.exists():
            csv = _text(numbers)
            items.append(_picture(drawing, f"theory-{name}", title, caption, counts, csv))
    rows = [(str(each.size), f"{each.error:.2%}", f"{each.error_of_mean:.2%}") for each in found.networks]
    header = ("networks", "one network", "their mean")
    return [*items, Table("Distance of f to the limit over data and steps", header, tuple(rows), numeric=2)]


def _slope_table(slopes: Sequence[Slope]) -> Table:
    """Return measured and expected slopes, one row per axis and module."""
    by_place: dict[tuple[str, str], dict[str, str]] = {}
    for slope in slopes:
        by_place.setdefault((slope.axis, slope.module), {})[slope.check] = _slope(slope)
    rows = [(axis, module, *(cells.get(check, "") for check in HEADINGS)) for (axis, module), cells in by_place.items()]
    caption = "Measured slopes ± standard error over seeds; expected slopes in brackets"
    return Table(caption, ("axis", "module", *map(minus, HEADINGS.values())), tuple(rows), numeric=4, is_folded=True)


def _slope(slope: Slope) -> str:
    low, high = (minus(f"{end:g}") for end in (slope.low, slope.high))
    expected = low if low == high else f"{low} to {high}"
    if slope.slope is None:
        return f"– ({expected})"
    error = "" if slope.standard_error is None else f" ± {slope.standard_error:.2f}"
    mark = " ✗" if slope.verdict == "FAIL" else ""
    return f"{signed(slope.slope, 2)}{error} ({expected}){mark}"


def plan_section(reading: Reading) -> Section:
    """The plan for the study's largest model, to copy."""
    target, base, made = reading.largest, reading.study.base, plan_for(reading.study, reading.largest)
    title = f"Target: {target.describe()}. Base: {base.describe()}. Rules: {made.hps.rules}."
    return Section(
        "plan",
        "The plan for the largest model",
        f"The study's hyperparameters carried over to its largest model: {target.describe()}.",
        plan_items(made, title),
    )


def failures(reading: Reading) -> Section:
    """List all runs that failed, diverged or were stopped."""
    rows = [
        (
            reading.directory.place(result.identity).name,
            result.status,
            f"step {result.step} of {result.run.train.steps}" if result.step else "",
            result.error or _why_ended(reading, result),
        )
        for result in sorted(reading.table.results, key=lambda each: (LISTED.get(each.status, 0), each.identity))
        if result.status in LISTED
    ]
    item: Item = Note("No run has failed, diverged or was stopped.")
    if rows:
        caption = f"{plural(len(rows), 'run')} that failed, diverged or were stopped"
        header = ("run", "status", "step", "reason")
        item = Table(caption, header, tuple(rows), is_folded=len(rows) > MOST_ROWS_OPEN)
    lead = f"{reading.counts()}. Figures mark diverged and stopped runs and never average over the remaining seeds."
    return Section("failures", "Failures", lead, (item,))


def _why_ended(reading: Reading, result: Result) -> str:
    """Return why a run without an error has ended before its last step."""
    stop = reading.directory.stop(result.identity) if result.status == "stopped" else None
    if stop is None:
        return "loss above the limit, or not finite"
    return f"stopped early: training loss {stop.train_loss:.4f}, that of zero-shot {stop.zero_shot_loss:.4f}"


def environment(reading: Reading) -> Section:
    """List the machines and versions that the runs used."""
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for result in reading.table.results:
        if result.status in DONE and (run := reading.directory.directory(result.identity)):
            found[tuple(sorted((name, str(value)) for name, value in run.environment.items()))] += 1
    names = sorted({name for each in found for name, _ in each})
    rows = [(*(dict(each).get(name, "–") for name in names), str(count)) for each, count in found.most_common()]
    item: Item = Note("No run has ended yet.")
    if rows:
        item = Table("Environment at the start of the runs that have ended", (*names, "runs"), tuple(rows), numeric=1)
    train, seconds = reading.study.train, sum(result.seconds or 0 for result in reading.table.results)
    facts = (
        f"Data: {train.data}, content hash {reading.directory.data_hash[:16]}. Compute type: {train.dtype}. Schedule: "
        f"{train.schedule} with {plural(train.warmup_steps, 'warm-up step')}. Batch: "
        f"{plural(train.batch_tokens, 'token')}. Training took {seconds / 3600:.2f} worker hours in total."
    )
    return Section("environment", "Environment", facts, (item,))


def commands(reading: Reading) -> Section:
    """List the commands that repeat the study."""
    path, train = reading.directory.path, reading.study.train
    lines = [suggested.sweep(path), *_check_commands(reading), *_theory_commands(reading), suggested.report(path)]
    study = json.dumps(reading.study.to_dict(), indent=2)
    return Section(
        "commands",
        "Commands",
        f"`{path / 'study.json'}` is the study as it was run, with all overrides and refinements; the study file below "
        "has the same content. The numbers do not depend on `--workers`. The file manifest.json in the directory of "
        f"the data, `{train.data}`, names the source and the options of `expertp prepare`.",
        (
            Listing("commands-text", "Commands that repeat the study", "\n".join(lines)),
            Listing("study-text", "The study file", study, is_folded=True),
        ),
    )


def _check_commands(reading: Reading) -> list[str]:
    """Return the commands of the stored coordinate checks with the options that they had, or of a first check."""
    path, study, lines = reading.directory.path, reading.study, list[str]()
    for name in _check_names(reading):
        if not (record := path / name / "coordcheck.json").exists():
            continue
        found = _read(record, CheckRecord, "coordcheck")
        changes: list[str] = []
        if found.spec is not None:
            changes = suggested.overrides(study, build_study(found.spec, f"{record}: spec"), CHECKED)
        rules = [] if found.rules == study.hps.rules else ["--rules", found.rules]
        lines.append(suggested.coordcheck(path, name, [*changes, *rules, "--steps", str(found.steps)]))
    return lines or [suggested.coordcheck(path)]


def _theory_commands(reading: Reading) -> list[str]:
    """Return the command of the stored comparison with the theory, if there is one."""
    path = reading.directory.path
    if not (record := path / "theory" / "compare.json").exists():
        return []
    from expertp.theory.records import ComparisonRecord
    from expertp.theory.spec import TheorySpec

    problem = _read(record, ComparisonRecord, "theory compare").problem
    return [suggested.theory(path, suggested.overrides(TheorySpec(), problem))]
