"""The directory of the findings: the only module that knows its file names. All studies in it share their runs.

data/NAME/        tokens of a corpus
runs/             the runs of all studies; `cells/` in directories that earlier versions have made
studies/NAME/     one study
findings/NAME/    finding.json, and the figures with their numbers
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from expertp.data import PrepareOptions, prepare
from expertp.data.manifest import MANIFEST_FILE
from expertp.errors import DamagedError, InputError, RunError
from expertp.paper.catalogue import FINDINGS
from expertp.paper.finding import Finding, FindingRecord, Outcome
from expertp.paper.profile import ProfileSpec, Source, find_source
from expertp.paper.results import export_results, import_results, in_blocks, recorded_choice
from expertp.spec import RunSpec
from expertp.study.spec import StudySpec
from expertp.study.store import StudyDirectory, open_study, preview_study, read_study, stored_choice
from expertp.study.table import DONE, SETTLED, StudyTable
from expertp.util.files import write_atomically
from expertp.util.records import read_record
from expertp.util.text import duration, plural


@dataclass(frozen=True)
class PaperDirectory:
    """A directory in which findings are made in one profile.

    Args:
        path: the directory.
        profile: the profile.
        results: a folder of tables from which finished runs are taken; None: all runs are trained here.
    """

    path: Path
    profile: ProfileSpec
    results: Path | None = None

    @property
    def runs_folder(self) -> str:
        """The shared directory of runs, relative to a study."""
        return "../../cells" if (self.path / "cells").is_dir() else "../../runs"

    def folder(self, finding: Finding) -> Path:
        """Return the directory of a finding."""
        return self.path / "findings" / finding.name

    def source(self, study: str) -> Source:
        """Return the text of a study."""
        name = self.profile.corpus_of(study)
        return find_source(name, self.profile.corpora[name])

    def data(self, study: str) -> Path:
        """Return the directory of a study's tokens, whether it exists or not."""
        return self.path / "data" / self.source(study).name

    def study_path(self, study: str) -> Path:
        """Return the directory of a study, whether it exists or not."""
        return self.path / "studies" / study

    def study(self, study: str) -> StudySpec:
        """Return a study; an adaptive one with the cells that it or its published results have chosen so far."""
        spec = self.profile.study(study, self.data(study))
        if spec.chosen is None:
            return spec
        published = recorded_choice(study, self.results) if self.results else None
        return spec.replace(chosen=stored_choice(self.study_path(study)) or published or spec.chosen)

    def missing(self, study: str) -> list[RunSpec] | None:
        """Return the runs of a study that are not trained yet; None where its text is not prepared. Writes nothing."""
        data = self.data(study)
        if not (data / MANIFEST_FILE).exists():
            return None
        directory = preview_study(self.study_path(study), self.study(study), self.runs_folder)
        return [each.run for each in directory.results() if each.status not in SETTLED]

    def open(self, study: str, say: Callable[[str], None]) -> StudyDirectory:
        """Prepare a study's text, once, and open the study."""
        source, name, data = self.source(study), self.profile.corpus_of(study), self.data(study)
        if not (data / MANIFEST_FILE).exists():
            say(source.note or f"{name}: tokenizing {source.text}")
            corpus = self.profile.corpora[name]
            options = PrepareOptions(tokenizer=corpus.tokenizer, vocab_size=corpus.vocab_size)
            prepare(source.text, data, options, on_note=say)
        (self.path / "studies").mkdir(parents=True, exist_ok=True)
        return open_study(self.study_path(study), self.study(study), self.runs_folder)

    def make(
        self,
        finding: Finding,
        train: Callable[[StudyDirectory], StudyDirectory],
        should_stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> FindingRecord | None:
        """Train the missing runs of a finding, draw and judge it; None when stopped before all runs have ended.

        `train` returns the study with all its cells; an adaptive one has more of them than before.
        """
        tables: dict[str, StudyTable] = {}
        for study in (each.name for each in finding.studies):
            say(f"{finding.name}: {study}")
            directory = self.open(study, say)
            if self.results:
                say(f"{import_results(directory, self.results)} finished runs taken from {self.results}")
            directory = train(directory)
            if should_stop():
                return None
            # The time of an adaptive study may end before all chosen cells are trained; its verdicts are open then.
            allowed = DONE if directory.study.chosen is None else (*SETTLED, "unfinished", "missing")
            if failed := sum(each.status not in allowed for each in directory.results()):
                where = shlex.quote(str(directory.path))
                raise RunError(
                    f"{finding.name}: {plural(failed, 'run')} of {study} failed; see `expertp status {where}`"
                )
            tables[study] = directory.table(in_blocks)
        return self._write(finding, finding.decide(tables), _cost(tables.values()))

    def _write(self, finding: Finding, outcome: Outcome, cost: str) -> FindingRecord:
        studies = tuple(each.name for each in finding.studies)
        for drawing in outcome.drawings:
            drawing.write(self.folder(finding))
        record = FindingRecord(
            name=finding.name,
            where=finding.where,
            claim=finding.claim,
            criteria=finding.criteria,
            studies=studies,
            pictures=tuple(drawing.name for drawing in outcome.drawings),
            answer=outcome.answer,
            paper_answer=outcome.paper_answer,
            number=outcome.number,
            why=outcome.why,
            table=outcome.table,
            profile=self.profile.name,
            text=tuple(dict.fromkeys(self.source(study).described for study in studies)),
            cost=cost,
        )
        text = json.dumps(record.to_dict(), indent=1) + "\n"
        write_atomically(self.folder(finding) / "finding.json", text.encode())
        return record


def training_seconds(study: StudyDirectory) -> float:
    """Return the training time of a study's runs, in whichever finding and command they were trained."""
    return sum(each.seconds or 0.0 for each in study.results())


def _cost(tables: Iterable[StudyTable]) -> str:
    """Return the number of runs and their training time; a run that several studies share counts once."""
    runs = {each.identity: each.seconds or 0.0 for table in tables for each in table.results}
    return f"{plural(len(runs), 'run')}, {duration(sum(runs.values()))} of training in all" if runs else "no training"


def read_records(path: Path) -> list[FindingRecord]:
    """Return the findings in a directory, in the catalogue's order, with the claims as the catalogue has them now.

    A record of an earlier version keeps its own claim: its answer was given to that one.
    """
    found = []
    for finding in FINDINGS:
        place = path / "findings" / finding.name / "finding.json"
        if not place.exists():
            continue
        remedy = f"make it again with `expertp paper make {finding.name}`"
        tree = read_record(place, dict, remedy)
        try:
            record = FindingRecord.from_dict(tree)
            is_current = record.is_judged_by(finding.criteria)
            found.append(replace(record, where=finding.where, claim=finding.claim) if is_current else record)
        except ValueError:
            raise DamagedError(f"{place}: damaged (not the record of a finding); {remedy}") from None
    if not found:
        raise InputError(f"{path}: no findings here; `expertp paper make NAME --out {path}` makes one")
    return found


def publish(path: Path, to: Path) -> None:
    """Copy the small files of a directory: figures as SVG, their numbers, and the results of all runs as tables."""
    records = read_records(path)
    for record in records:
        place = to / "findings" / record.name
        place.mkdir(parents=True, exist_ok=True)
        for name in ("finding.json", *(f"{each}.{kind}" for each in record.pictures for kind in ("svg", "csv"))):
            shutil.copyfile(path / "findings" / record.name / name, place / name)
    (to / "results").mkdir(exist_ok=True)
    for study in dict.fromkeys(study for record in records for study in record.studies):
        export_results(read_study(path / "studies" / study), to / "results")
