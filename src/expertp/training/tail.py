"""The records of a run that is being trained, each read once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from expertp.errors import DamagedError
from expertp.training.records import StepMetrics
from expertp.training.store import is_regular_file
from expertp.util.records import parse_record


class RecordsTail:
    """Follows metrics.jsonl: every look reads what was appended since the last one.

    A run that is resumed cuts its records back to a checkpoint. The file is then read again from its beginning.

    Args:
        path: the file; it may be missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[StepMetrics] = []
        self._size, self._last_line = 0, b""

    def look(self) -> Sequence[StepMetrics]:
        """Return all records up to now; a last line that is not complete is left out."""
        remedy = "restore the file, or remove the run's directory to train the run again"
        if not is_regular_file(self.path, remedy):
            self._forget()
            return self._records
        with self.path.open("rb") as file:
            file.seek(self._size - len(self._last_line))
            if file.read(len(self._last_line)) != self._last_line:  # the file was cut
                self._forget()
                file.seek(0)
            *lines, _ = file.read().split(b"\n")
        first = len(self._records) + 1
        new = [
            parse_record(line, StepMetrics, f"{self.path}, line {number}", remedy)
            for number, line in enumerate(lines, first)
        ]
        if lines:
            self._records += new
            self._size += sum(len(line) + 1 for line in lines)
            self._last_line = lines[-1] + b"\n"
        return self._records

    def step(self) -> int:
        """Return the step of the last record; 0 without records, and where they are damaged."""
        try:
            records = self.look()
        except DamagedError:
            return 0
        return records[-1].step if records else 0

    def _forget(self) -> None:
        self._records, self._size, self._last_line = [], 0, b""
