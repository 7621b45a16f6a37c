"""render_report(directory) -> DIR/report.html, with DIR/figures/ and DIR/verdict.json beside it."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from expertp.analysis.transfer import AxisVerdict, StudyVerdict
from expertp.figures.labels import HP_SHORT, axis_title, signed
from expertp.files import write_atomically
from expertp.report import closing
from expertp.report.reading import Reading, read
from expertp.report.sections import Album, later_sections, sections
from expertp.report.views import Missing, Page, VerdictRow
from expertp.study import HP
from expertp.study_store import StudyDirectory
from expertp.wording import count

PROGRAM = Path(__file__).parents[1]


@dataclass(frozen=True, eq=False)
class Written:
    """A report on disk, and the verdicts in it."""

    path: Path
    verdict: StudyVerdict


def render_report(directory: StudyDirectory) -> Path:
    """Write the report of a study from what its directory holds, and return where it lies."""
    return write_report(directory).path


def is_current(directory: StudyDirectory) -> bool:
    """Return whether the report there is what would be written now, by the times of all files that it depends on.

    A report bears the time of the newest thing that it shows; when it was really written is its inode's affair.
    """
    report = directory.path / "report.html"
    if not (report.exists() and (directory.path / "verdict.json").exists() and (directory.path / "figures").exists()):
        return False
    program = [path.stat().st_ctime_ns for path in PROGRAM.rglob("*") if path.suffix in (".py", ".html", ".css", ".js")]
    return report.stat().st_mtime_ns == directory.changed_at() and report.stat().st_ctime_ns > max(program)


def write_report(directory: StudyDirectory) -> Written:
    """Write the report, its figures and verdict.json."""
    shown = directory.changed_at()
    reading, album = read(directory), Album()
    page = make_page(reading, album)
    for drawing in album.drawings:
        drawing.write(directory.path / "figures")
    write_atomically(directory.path / "verdict.json", json.dumps(reading.verdict.to_tree(), indent=2).encode())
    report = directory.path / "report.html"
    write_atomically(report, fill(page).encode())
    os.utime(report, ns=(shown, shown))
    return Written(report, reading.verdict)


def make_page(reading: Reading, album: Album) -> Page:
    """Gather all that the page says; figures go into the album."""
    study, path = reading.study, reading.directory.path
    missing = sum(result.status in ("missing", "unfinished") for result in reading.results)
    shown = [
        *sections(reading, album),
        closing.coordinate_check(reading),
        *later_sections(reading, album),
        closing.theory(reading),
        closing.plan_section(reading),
        closing.failures(reading),
        closing.environment(reading),
        closing.commands(reading),
    ]
    return Page(
        title=f"Transfer study: {study.name}",
        intro=intro(reading),
        facts=facts(reading),
        verdict_sum=verdict_sum(reading),
        verdict_note=verdict_note(reading),
        verdicts=tuple(verdict_row(reading, each) for each in reading.verdict.axes),
        missing=Missing(f"{missing} of {len(reading.results)} runs have not ended.", reading.command("sweep"))
        if missing
        else None,
        sections=tuple(shown),
        written_by=f"expertp {version('expertp')}, `expertp report {path}`",
    )


def intro(reading: Reading) -> tuple[str, ...]:
    """Say in two sentences what was studied and how large it was."""
    study = reading.study
    axes = ", ".join(f"{max(study.models(axis)):g}× in {axis}" for axis in study.axis_names)
    named: tuple[tuple[HP, str], ...] = (("log2_lr", "learning rates"), ("log2_init_std", "init stds"))
    grids = " and ".join(f"{len(study.grid(hp))} {name}" for hp, name in named if study.grid(hp))
    beside = f", beside {' and '.join(study.contrasts)}" if study.contrasts else ""
    tokens, largest = study.train.tokens, reading.largest.counts()
    ratio = tokens / largest.total
    return (
        f"Hyperparameters of a base of {count(study.base.counts().total)} parameters are carried by the rule set "
        f"{study.hps.rules} to models of up to {axes}; there {grids} are swept with {len(study.seeds)} seeds{beside}.",
        f"The largest model has {count(largest.total)} parameters ({count(largest.active)} active), and a run sees "
        f"{count(tokens)} tokens, {ratio:.2g} per parameter"
        + (
            ": at this scale a study shows how the machinery behaves, and little about the end of long training."
            if tokens < 1e9 or ratio < 1
            else "."
        ),
    )


def facts(reading: Reading) -> tuple[tuple[str, str], ...]:
    """Return the numbers of the study at a glance."""
    study, statuses = reading.study, Counter(result.status for result in reading.results)
    return (
        ("runs", str(len(reading.results))),
        ("finished", str(statuses["finished"])),
        ("diverged", str(statuses["diverged"])),
        ("failed", str(statuses["failed"])),
        ("missing", str(statuses["missing"] + statuses["unfinished"])),
        ("seeds", str(len(study.seeds))),
        ("tokens a run", count(study.train.tokens)),
        ("largest model", count(reading.largest.counts().total)),
    )


def verdict_sum(reading: Reading) -> str:
    """Count the verdicts."""
    found = Counter(each.verdict or "not judged" for each in reading.verdict.axes)
    counted = [f"{found[name]} {name}" for name in ("PASS", "FAIL", "INCONCLUSIVE", "not judged") if found[name]]
    return f"Of {sum(found.values())} grids along axes: {', '.join(counted) or 'none'}."


def verdict_note(reading: Reading) -> str:
    """Say what PASS means in this study."""
    allowed = reading.study.verdict
    if allowed is None:
        return "This study asks for no verdict (verdict: null); the numbers are given all the same."
    return (
        f"PASS: no optimum on the grid's edge, the 95% interval of the drift within ±{allowed.drift:g} octaves per "
        f"doubling, and the excess loss's interval below the larger of {allowed.excess_nats:g} nats and "
        f"{allowed.excess_sds:g} s.d. over seeds. FAIL: an interval wholly outside. Else INCONCLUSIVE. Drift: how the "
        "optimum moves. Excess: zero-shot loss minus the best of that size, where its interval reaches highest."
    )


def verdict_row(reading: Reading, verdict: AxisVerdict) -> VerdictRow:
    """Return a verdict as the page shows it."""
    curves = reading.table.curves(verdict.axis, reading.study.hps.rules, verdict.hp).values()
    runs = sum(len(cell) for curve in curves for cell in curve.losses)
    needs = [need.told(reading.directory.path) for need in verdict.needs[:1]]
    return VerdictRow(
        axis=axis_title(verdict.axis),
        hp=HP_SHORT[verdict.hp],
        verdict=verdict.verdict or "not judged",
        reason=sentence(verdict.reason),
        drift=interval(verdict.drift, verdict.drift_ci, 2),
        excess=interval(verdict.excess, verdict.excess_ci, 3),
        limit=f"{verdict.excess_limit:.3f}" if math.isfinite(verdict.excess_limit) else "–",
        seeds=str(verdict.n_seeds),
        diverged=f"{sum(sum(curve.n_diverged) for curve in curves)} of {runs}",
        next_step=sentence(needs[0]) if needs else "",
    )


def sentence(text: str) -> str:
    """Begin with a capital letter, end with a stop, and write minus signs as such.

    >>> sentence("moves by -0.1 octaves")
    'Moves by −0.1 octaves.'
    """
    text = re.sub(r"\+?\binf\b", "∞", text)
    text = re.sub(r"(?<![\w-])-(?=[\d.∞])", "\N{MINUS SIGN}", text)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def interval(value: float, ends: tuple[float, float], digits: int) -> str:
    """Write a number with its interval; a side that is open is infinite.

    >>> interval(0.1, (-0.05, float("inf")), 2), interval(float("nan"), (0, 0), 2)
    ('+0.10 [−0.05, ∞]', '–')
    """
    if math.isnan(value):
        return "–"
    low, high = (
        "?" if math.isnan(end) else "∞" if end == math.inf else "−∞" if end == -math.inf else signed(end, digits)
        for end in ends
    )
    return f"{signed(value, digits)} [{low}, {high}]"


def fill(page: Page) -> str:
    """Put a page into the template; all text is escaped, figures are not."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("expertp.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["safe_svg"] = _safe
    environment.filters["code"] = code
    return environment.get_template("template.html").render(page=page)


def _safe(svg: str) -> str:
    from markupsafe import Markup

    return Markup(svg)


def code(text: str) -> str:
    """Return text with `what stands in backquotes` as code, escaped.

    >>> code("run `a<b` now")
    Markup('run <code>a&lt;b</code> now')
    """
    from markupsafe import Markup, escape

    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )
