"""Where figures are made: a directory in which all studies share their cells.

data/NAME/        tokens of a corpus
cells/            all runs, of whatever study
studies/NAME/     one study each
findings/NAME/    finding.json, and the pictures with their numbers
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from expertp.data import PrepareOptions, prepare
from expertp.data.manifest import MANIFEST_FILE
from expertp.files import write_atomically
from expertp.paper.finding import Finding, Shown
from expertp.paper.profile import ProfileSpec, Source, find_source
from expertp.spec import RunSpec
from expertp.study_store import DONE, StudyDirectory, open_study, preview_study

CELLS = "../../cells"


@dataclass(frozen=True)
class Workshop:
    """A directory of figures in one profile."""

    path: Path
    profile: ProfileSpec

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

    def write(self, finding: Finding, shown: Shown, facts: dict[str, Any]) -> Path:
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
            **facts,
        }
        write_atomically(folder / "finding.json", (json.dumps(record, indent=1) + "\n").encode())
        return folder
