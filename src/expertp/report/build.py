"""render_report(directory) writes DIR/report.html, DIR/figures/ and DIR/verdict.json."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from expertp.analysis.verdict import Conclusion, Judgement, StudyVerdict
from expertp.figures.labels import HP_SHORT, axis_title
from expertp.report import appendix, commands, sections
from expertp.report.elements import Missing, Page, Table, VerdictRow
from expertp.report.pages import fill
from expertp.report.place import digest_of, place_of
from expertp.report.reading import Reading, read
from expertp.report.sections import Album
from expertp.report.summary import describe_horizon, summarize_study
from expertp.study.cells import grid
from expertp.study.spec import HP
from expertp.study.store import StudyDirectory, read_study
from expertp.util.machine import usable_cores
from expertp.util.statistics import Estimate
from expertp.util.text import count, duration, plural

OF_OTHER_ARMS = (
    "An arm that is not re-tuned (of: all) is compared with the lowest loss of the study's own arm, and its cost is "
    "negative where it lies below that."
)


@dataclass(frozen=True, eq=False)
class Written:
    """A report on disk, and the verdicts in it."""

    path: Path
    verdict: StudyVerdict


def render_report(study: StudyDirectory | str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a study from what its directory holds; nothing is trained.

    Args:
        study: the study's directory, as `run_study` or `expertp sweep --out` left it.
        out: path of the page; by default report.html in the study's directory.

    Returns:
        The path of the page. Beside report.html are figures/ and verdict.json, beside another page NAME.html
        NAME-figures/ and NAME-verdict.json.

    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from expertp import load_study
    >>> from expertp.study.store import open_study
    >>> with TemporaryDirectory() as folder:
    ...     for split in ("train", "val"):  # tokens as nanoGPT writes them
    ...         np.zeros(99_999, "<u2").tofile(f"{folder}/{split}.bin")
    ...     study = load_study("configs/study.yaml", [f"train.data={folder}"])
    ...     _ = open_study(f"{folder}/study", study)  # no run is trained yet: the report says which are missing
    ...     report = render_report(f"{folder}/study")
    ...     report.name, "runs have not ended" in report.read_text(encoding="utf-8")
    ('report.html', True)
    """
    directory = study if isinstance(study, StudyDirectory) else read_study(study)
    return write_report(directory, None if out is None else Path(out)).path


def is_current(directory: StudyDirectory, out: Path | None = None) -> bool:
    """Return whether the report on disk shows what the study's directory holds now."""
    return place_of(directory.path, out).is_current(digest_of(directory))


def write_report(directory: StudyDirectory, out: Path | None = None) -> Written:
    """Write the report, its figures and its verdicts."""
    place = place_of(directory.path, out)
    with place.replacing():
        digest = digest_of(directory)  # before reading: what changes meanwhile makes the page out of date
        reading = read(directory)
        album = Album(reading)
        page = make_page(reading, album, digest)
        verdict = json.dumps(reading.verdict.to_dict(), indent=2)
        place.replace(fill("template.html", page=page).encode(errors="replace"), verdict.encode(), album.drawings)
    return Written(place.page, reading.verdict)


def make_page(reading: Reading, album: Album, digest: str) -> Page:
    """Gather the contents of the page, which carries a digest of what it shows; figures go into the album."""
    study, path, results = reading.study, reading.directory.path, reading.table.results
    missing, runs = reading.verdict.missing, plural(len(results), "run")
    summary = (*summarize_study(reading.verdict), describe_horizon(reading.verdict.horizon))
    has = "has" if missing == 1 else "have"
    numbered = [*sections.run_sections(reading, album), appendix.coordinate_check(reading), appendix.theory(reading)]
    others = [
        each(reading) for each in (appendix.plan_section, appendix.failures, appendix.environment, appendix.commands)
    ]
    return Page(
        digest=digest,
        title=f"Transfer study: {study.name}",
        summary=tuple(map(_typographic, filter(None, summary))),
        headline=sections.headline(reading, album),
        intro=intro(reading),
        facts=facts(reading),
        verdict_sum=verdict_sum(reading),
        verdict_note=verdict_note(reading),
        verdicts=tuple(verdict_row(reading, each) for each in (*reading.verdict.axes, *reading.verdict.others)),
        next_cells=next_cells(reading),
        missing=Missing(f"{missing} of {runs} {has} not ended.", commands.sweep(path)) if missing else None,
        sections=(*sorted(numbered, key=lambda section: int(section.number)), *others),
        written_by=f"Written by expertp {version('expertp')}, `{commands.report(path)}`",
    )


def intro(reading: Reading) -> tuple[str, ...]:
    """Return two sentences: what was studied, and at what scale."""
    study = reading.study
    axes = ", ".join(f"{reading.table.sizes(axis)[-1].scale:g}× in {axis_title(axis)}" for axis in reading.table.axes)
    named: tuple[tuple[HP, str], ...] = (("log2_lr", "learning rate"), ("log2_init_std", "init std"))
    grids = " and ".join(plural(len(grid(study, hp)), name) for hp, name in named if grid(study, hp))
    compared = f" The study also trains {' and '.join(study.arms)} for comparison." if study.arms else ""
    tokens, largest = study.train.tokens, reading.largest.counts()
    ratio = tokens / largest.total
    return (
        f"The hyperparameters of a base model with {count(study.base.counts().total)} parameters are carried over by "
        f"the rule set {study.hps.rules} to larger models, up to {axes}. At each size, {grids} are swept with "
        f"{plural(len(study.seeds), 'seed')} to see whether the base's optimum still holds.{compared}",
        f"The largest model has {count(largest.total)} parameters ({count(largest.active)} active), and each run "
        f"trains on {count(tokens)} tokens ({ratio:.2g} per parameter)."
        + (" A study of this scale says little about long training." if tokens < 1e9 or ratio < 1 else ""),
    )


def facts(reading: Reading) -> tuple[tuple[str, str], ...]:
    """Return the main numbers of the study."""
    study, verdict = reading.study, reading.verdict
    finished = sum(result.status == "finished" for result in reading.table.results)
    counts = {"finished": finished, "diverged": verdict.diverged, "failed": verdict.failed, "missing": verdict.missing}
    if verdict.stopped:  # by an adaptive sweep
        counts["stopped early"] = verdict.stopped
    return (
        ("runs", str(len(reading.table.results))),
        *((status, str(n)) for status, n in counts.items()),
        ("seeds", str(len(study.seeds))),
        ("tokens per run", count(study.train.tokens)),
        ("parameters, largest model", count(reading.largest.counts().total)),
    )


def verdict_sum(reading: Reading) -> str:
    """Count the verdicts of the study's own arm."""
    found = Counter[str](each.conclusion or "not judged" for each in reading.verdict.axes)
    counted = [f"{found[name]} {name}" for name in (*get_args(Conclusion), "not judged") if found[name]]
    return (
        f"{', '.join(counted) or 'None'}, of {plural(sum(found.values()), 'combination')} of axis and hyperparameter."
    )


def verdict_note(reading: Reading) -> str:
    """Return what the verdicts of this study mean."""
    allowed = reading.study.verdict
    if allowed is None:
        return "This study asks for no verdict (verdict: null). The table gives the numbers only."
    return (
        "The cost of zero-shot is its loss minus the lowest loss of the same size, paired by seed, at the size that "
        f"decides. The tolerance is the larger of {allowed.nats:g} nats and {allowed.share:.0%} of the loss that the "
        "size gains over the base. TRANSFERS: the whole interval of the cost lies within the tolerance, at every size. "
        "FAILS: it lies beyond the tolerance, by more than the base's own distance from its optimum explains. "
        "UNDECIDED: everything else. NO POWER: an arm that should fail on this axis does not."
        + (" " + OF_OTHER_ARMS if any(each.hp is None for each in reading.verdict.others) else "")
    )


def verdict_row(reading: Reading, judged: Judgement) -> VerdictRow:
    """Return the row of a verdict in the table."""
    runs = [row.result for row in reading.table.where(axis=judged.axis, arm=judged.arm)]
    is_own_and_open = judged.arm == reading.table.own and judged.conclusion == "UNDECIDED"
    worst = judged.worst
    return VerdictRow(
        axis=axis_title(judged.axis),
        arm=judged.arm.name,
        hp=HP_SHORT[judged.hp] if judged.hp else "all",
        verdict=judged.conclusion or "not judged",
        has_no_power=judged.has_no_power,
        reason=sentence(judged.reason),
        cost=interval(judged.cost, ".4f"),
        confidence=judged.cost_confidence,
        tolerance=f"{worst.tolerance:.4f}" if worst else "–",
        sensitivity=interval(worst.sensitivity, ".3f") if worst else "–",
        drift=interval(judged.drift, "+.2f"),
        seeds=str(judged.n_seeds),
        diverged=f"{sum(each.status == 'diverged' for each in runs)} of {len(runs)}",
        next_step=sentence(str(reading.deciding)) if is_own_and_open else "",
    )


def next_cells(reading: Reading) -> Table | None:
    """Return the cells that would decide the open verdicts, why, and what they cost; None if there are none."""
    rows = [
        (
            axis_title(each.choice.axis),
            HP_SHORT[each.choice.hp],
            _typographic(", ".join(f"{value:g}" for value in each.choice.values)),
            sentence(each.choice.why),
            str(len(each.choice.seeds)),
            str(each.runs),
            "–" if math.isnan(each.seconds) else duration(each.seconds / usable_cores()),
        )
        for each in reading.next_cells
    ]
    caption = "Cells that an adaptive sweep would train next, and the time with all cores of this machine"
    head = ("axis", "of", "values, log2", "because", "seeds", "more runs", "time")
    return Table(caption, head, tuple(rows), numeric=3) if rows else None


def sentence(text: str) -> str:
    """Return a text with a capital letter, a full stop and typographic numbers.

    >>> sentence("moves by -0.1 octaves")
    'Moves by −0.1 octaves.'
    """
    text = _typographic(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def interval(estimate: Estimate, spec: str) -> str:
    """Write an estimate with its interval, given the format of a number.

    >>> interval(Estimate(0.1, -0.05, float("inf")), "+.2f")
    '+0.10 [−0.05, ∞]'
    """
    return _typographic(f"{estimate:{spec}}") if estimate.is_known else "–"


def _typographic(text: str) -> str:
    """Return a text with typographic minus signs and infinities, and without negative zeros."""
    text = re.sub(r"\+?\binf\b", "∞", text)
    text = re.sub(r"(?<![\w-])-(?=0\.0+(?!\d))", "+", text)
    return re.sub(r"(?<![\w-])-(?=[\d.∞])", "\N{MINUS SIGN}", text)
