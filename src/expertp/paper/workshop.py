"""Where figures are made: a directory in which all studies share their cells.

data/NAME/        tokens of a corpus
cells/            all runs, of whatever study
studies/NAME/     one study each
findings/NAME/    finding.json, and the pictures with their numbers
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from expertp.data import PrepareOptions, prepare
from expertp.data.manifest import MANIFEST_FILE
from expertp.errors import RunError
from expertp.files import write_atomically
from expertp.paper.exchange import import_cells, in_blocks
from expertp.paper.finding import Finding, Shown
from expertp.paper.profile import ProfileSpec, Source, find_source
from expertp.report.reading import Reading, read
from expertp.spec import RunSpec
from expertp.study_store import DONE, Result, StudyDirectory, open_study, preview_study
from expertp.wording import duration

CELLS = "../../cells"


@dataclass(frozen=True)
class Workshop:
    """A directory of figures in one profile."""

    path: Path
    profile: ProfileSpec
    tables: Path | None = None  # finished runs are taken from here

    def folder(self, finding: Finding) -> Path:
        """Return where a finding goes."""
        return self.path / "findings" / finding.name

    def source(self, study: str) -> Source:
        """Return where a study's text comes from."""
        name = self.profile.corpus_of(study)
        return find_source(name, self.profile.corpora[name])

    def data(self, study: str) -> Path:
        """Return where a study's tokens are, or will be."""
        return self.path / "data" / self.source(study).name

    def missing(self, study: str) -> list[RunSpec] | None:
        """Return what a study has still to train; None where its text is not prepared yet. Nothing is written."""
        data = self.data(study)
        if not (data / MANIFEST_FILE).exists():
            return None
        directory = preview_study(self.path / "studies" / study, self.profile.study(study, data), CELLS)
        return [each.run for each in directory.results() if each.status not in DONE]

    def open(self, study: str, say: Callable[[str], None]) -> StudyDirectory:
        """Prepare a study's text, once, and open the study."""
        source, name, data = self.source(study), self.profile.corpus_of(study), self.data(study)
        corpus = self.profile.corpora[name]
        if not (data / MANIFEST_FILE).exists():
            say(source.note or f"{name}: cutting {source.text} into tokens")
            options = PrepareOptions(tokenizer=corpus.tokenizer, vocab_size=corpus.vocab_size)
            prepare(source.text, data, options, on_note=say)
        (self.path / "studies").mkdir(parents=True, exist_ok=True)
        return open_study(self.path / "studies" / study, self.profile.study(study, data), CELLS)

    def make(
        self,
        finding: Finding,
        train: Callable[[StudyDirectory], Sequence[Result]],
        should_stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> dict[str, Any] | None:
        """Train what a finding needs, draw it and judge it; None when told to stop: what is halfway is not drawn."""
        readings: dict[str, Reading] = {}
        for study in finding.studies:
            say(f"{finding.name}: {study}")
            directory = self.open(study, say)
            if self.tables:
                say(f"{import_cells(directory, self.tables)} finished runs taken from {self.tables}")
            results = train(directory)
            if should_stop():
                return None
            failed = sum(each.status not in DONE for each in results)
            if failed:
                where = shlex.quote(str(directory.path))
                raise RunError(f"{finding.name}: {failed} runs of {study} have failed; `expertp status {where}` tells")
            readings[study] = read(directory, in_blocks)
        return self._write(finding, finding.show(readings), _cost(readings.values()))

    def _write(self, finding: Finding, shown: Shown, cost: str) -> dict[str, Any]:
        """Write a finding's pictures and what came of it."""
        folder = self.folder(finding)
        for drawing in shown.drawings:
            drawing.write(folder)
        record = {
            "name": finding.name,
            "where": finding.where,
            "claim": finding.claim,
            "studies": list(finding.studies),
            "pictures": [drawing.name for drawing in shown.drawings],
            **asdict(shown.outcome),
            "profile": self.profile.name,
            "text": list(dict.fromkeys(self.source(study).described for study in finding.studies)),
            "cost": cost,
        }
        write_atomically(folder / "finding.json", (json.dumps(record, indent=1) + "\n").encode())
        return record


def _cost(readings: Iterable[Reading]) -> str:
    """Say what runs have taken; one that several studies share counts once."""
    runs = {each.identity: each for reading in readings for each in reading.results}
    seconds = sum(each.seconds or 0.0 for each in runs.values())
    return f"{len(runs)} runs, {duration(seconds)} of training in all" if runs else "no training"
