"""Where a report lies, whether it shows what the study's directory holds now, and how it is replaced as a whole."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from expertp.errors import InputError
from expertp.figures.save import Drawing
from expertp.study.store import StudyDirectory
from expertp.util.files import LOCK_FILE, exclusive, file_sha256, move_into_place, write_durably

PROGRAM = Path(__file__).parents[1]
SOURCES = (".py", ".html", ".css", ".js")
# The mark of a page, in its first bytes: a digest of everything that the page shows.
MARK = re.compile(rb'<meta name="expertp-digest" content="([0-9a-f]{64})">')
MARK_WITHIN = 2000
# Files of the coordinate check and of the theory that a page shows.
BESIDE = (
    *("coordcheck*/coordcheck.json", "coordcheck*/coordcheck.svg"),
    *("theory/compare.json", "theory/*.svg", "theory/*.csv"),
)


@dataclass(frozen=True)
class Place:
    """The page of a report, and beside it its figures and verdicts. Make it with `place_of`."""

    page: Path
    figures: Path
    verdict: Path

    @property
    def parts(self) -> Path:
        """Folder of the new files until all are complete; one that is left over belongs to a report that was killed."""
        return self.page.with_name(f".{self.page.name}.parts")

    def is_current(self, digest: str) -> bool:
        """Return whether all files are there and complete, and the page shows what has this digest."""
        is_complete = self.verdict.is_file() and self.figures.is_dir() and not self.parts.exists()
        return is_complete and _digest_in(self.page) == digest

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Lock the report, and remove the parts of a report that was killed; on leaving, remove our own."""
        busy = f"{self.page}: another process is writing this report; wait for it"
        with exclusive(self.parts, busy, is_temporary=True):
            try:
                _empty(self.parts)
                yield
            finally:
                with suppress(OSError):
                    _empty(self.parts)

    def replace(self, page: bytes, verdict: bytes, drawings: Sequence[Drawing]) -> None:
        """Replace the report, inside `replacing`: a kill at any moment leaves the old page or the new one."""
        for drawing in drawings:
            drawing.write(self.parts / "figures")
        for name, content in (("page", page), ("verdict", verdict)):
            write_durably(self.parts / name, content)
        self.figures.mkdir(exist_ok=True)
        for path in sorted((self.parts / "figures").glob("*")):
            os.replace(path, self.figures / path.name)
        move_into_place(self.parts / "verdict", self.verdict)
        # Last: the new page means that all of the report is new.
        move_into_place(self.parts / "page", self.page)


def place_of(directory: Path, out: Path | None = None) -> Place:
    """Return the place of a study's report: in its directory, or at the file `out` and beside it.

    >>> place_of(Path("first"), Path("pages/a.html")).figures.name
    'a-figures'
    """
    if out is None:
        return Place(directory / "report.html", directory / "figures", directory / "verdict.json")
    if out.exists() and (not out.is_file() or _digest_in(out) is None):
        raise InputError(f"{out}: exists and is not a report of expertp; choose another --out")
    return Place(out, out.with_name(f"{out.stem}-figures"), out.with_name(f"{out.stem}-verdict.json"))


def digest_of(directory: StudyDirectory) -> str:
    """Return a digest of everything that a report depends on: program, path and the contents of all files it reads."""
    # Figures read the records of zero-shot runs, and the horizon those of the base's learning rates.
    is_read = {cell.run for cell in directory.cells if cell.hp is None or (cell.size.is_base and cell.hp == "log2_lr")}
    paths = [directory.path / "study.json"]
    for identity, run in directory.runs.items():
        names = ("run.json", "summary.json", *(["metrics.jsonl"] if run in is_read else []))
        paths += [directory.place(identity) / name for name in names]
        paths += [directory.path / folder / f"{identity}.json" for folder in ("failures", "stops")]
    paths += beside(directory.path)
    lines = [version("expertp"), _program(), str(directory.path), *(f"{path} {_content(path)}" for path in paths)]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def beside(directory: Path) -> list[Path]:
    """Return the files of coordinate checks and of the theory that a page shows."""
    return sorted(path for pattern in BESIDE for path in directory.glob(pattern))


@cache
def _program() -> str:
    """Return a hash of the program's own files, so that a change of the program makes old pages out of date."""
    paths = sorted(path for path in PROGRAM.rglob("*") if path.suffix in SOURCES)
    return hashlib.sha256("\n".join(file_sha256(path) for path in paths).encode()).hexdigest()


def _content(path: Path) -> str:
    """Return the hash of a regular file; anything else, such as a pipe that never ends, has no content."""
    if not path.is_file():
        return "-"
    try:
        return file_sha256(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return "-"


def _digest_in(page: Path) -> str | None:
    """Return the digest that a page carries, or None if it is missing or is not a page of this program."""
    if not page.is_file():  # opening a pipe would block
        return None
    try:
        with page.open("rb") as file:
            found = MARK.search(file.read(MARK_WITHIN))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    return found[1].decode() if found else None


def _empty(folder: Path) -> None:
    for path in (each for each in folder.iterdir() if each.name != LOCK_FILE):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
