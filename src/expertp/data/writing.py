"""Shard writer: a shard has a hidden name until it is complete, synced and hashed."""

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from expertp.data.manifest import SHARD_PATTERN, Shard, Split
from expertp.data.tokenizers import Ids
from expertp.util.files import move_into_place, temporary_name

# Names of complete and incomplete shards, which `prepare` may overwrite and delete in its directory.
SHARD_NAME = re.compile(rf"{SHARD_PATTERN}|\.{SHARD_PATTERN}\.tmp")


class SplitWriter:
    """Write one split as numbered shards; no document spans two shards.

    Args:
        directory: directory of the shards.
        name: `train` or `val`, the prefix of the file names.
        written: the split as closed by earlier calls; numbering continues from it.
        eot: the end-of-text id.
    """

    def __init__(self, directory: Path, name: str, written: Split, eot: int) -> None:
        self.split = written
        self.open_tokens = 0
        self._eot = eot
        self._directory, self._name = directory, name
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()

    def add(self, ids: Ids) -> None:
        """Append the ids of one document, or of a part of it, and the end-of-text id."""
        if self._file is None:
            self._file = temporary_name(self._path()).open("wb")
        for part in (np.ascontiguousarray(ids), np.array([self._eot], dtype=ids.dtype)):
            self._file.write(part.data)
            self._hash.update(part.data)
        tokens = len(ids) + 1
        self.open_tokens += tokens
        self.split = replace(self.split, documents=self.split.documents + 1, tokens=self.split.tokens + tokens)

    def close_shard(self) -> None:
        """Rename the open shard, if any, to its final name and add it to `split`."""
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = self._path()
        move_into_place(temporary_name(path), path)
        shard = Shard(path.name, self.open_tokens, self._hash.hexdigest())
        self.split = replace(self.split, shards=(*self.split.shards, shard))
        self._file, self.open_tokens, self._hash = None, 0, hashlib.sha256()

    def discard_open_shard(self) -> None:
        """Delete a shard that an error left open; the next call writes it again."""
        if self._file is not None:
            with suppress(OSError):  # a full disk, which the first error has reported
                self._file.close()
            temporary_name(self._path()).unlink(missing_ok=True)

    def _path(self) -> Path:
        return self._directory / f"{self._name}_{len(self.split.shards):05d}.bin"
