"""The directory of one run: the only module that knows its file names, and every write in it is atomic.

run.json        what this run is (specs, identity, data) and where it ran
metrics.jsonl   one record per logged step, append-only; cut back to the checkpoint on resume
summary.json    how it stands: status, losses, loads, seconds
checkpoints/    step-00000100/{weights,optimizer}.safetensors + state.json; the newest two are kept
"""

import fcntl
import json
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from expertp.config import run_from_tree, run_id
from expertp.data import Dataset, TokenizerIdentity, save_tokenizer
from expertp.errors import InputError
from expertp.files import file_sha256, move_into_place, sync, write_atomically, write_durably
from expertp.spec import RunSpec

FORMAT = 1
# Square experts (alpha_ffn = 1) transpose undetectably, so the layout is written beside the weights.
WEIGHTS_METADATA = {"format": "pt", "expertp": "experts.up is [expert, in, hidden], experts.down [expert, hidden, out]"}
# What may lie in a run's directory before run.json does: a crash came first.
_MAY_PRECEDE = {"tokenizer.json"}
TENSOR_FILES = ("weights", "optimizer")


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    Args:
        step: optimizer steps done.
        weights: parameters and expert biases, by name.
        optimizer: optimizer state, by `STATE/parameter name`.
        metrics_bytes: length of metrics.jsonl at that step.
        seconds: time spent so far.
    """

    step: int
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    metrics_bytes: int
    seconds: float


class RunDirectory:
    """One run on disk. Make it with `open_run` (to train) or `read_run` (to look)."""

    def __init__(
        self, path: Path, run: RunSpec, identity: str, data_hash: str, tokenizer: TokenizerIdentity | None
    ) -> None:
        self.path, self.run, self.identity, self.data_hash = path, run, identity, data_hash
        self.tokenizer = tokenizer

    @property
    def metrics_path(self) -> Path:
        """Where metrics.jsonl lies."""
        return self.path / "metrics.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process; a second trainer on the same directory is an error."""
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"{self.path}: another process is training this run; wait for it or stop it") from None
            yield

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint beside the others, put it in place with one rename, and keep the newest two."""
        folder = self.path / "checkpoints"
        folder.mkdir(exist_ok=True)
        final = folder / f"step-{checkpoint.step:08d}"
        partial = folder / f".partial-{checkpoint.step:08d}"
        for left_over in folder.glob(".partial-*"):
            shutil.rmtree(left_over)
        partial.mkdir()
        hashes = {}
        for name in TENSOR_FILES:
            file = partial / f"{name}.safetensors"
            try:
                save_file(dict(getattr(checkpoint, name)), file, metadata=WEIGHTS_METADATA)
            except SafetensorError as error:  # it wraps what the system said: no space, no permission
                raise OSError(f"{file}: cannot be written: {error}") from None
            sync(file)
            hashes[file.name] = file_sha256(file)
        state = {
            "format": FORMAT,
            "identity": self.identity,
            "step": checkpoint.step,
            "metrics_bytes": checkpoint.metrics_bytes,
            "seconds": checkpoint.seconds,
            "sha256": hashes,
        }
        write_durably(partial / "state.json", json.dumps(state, indent=2).encode())
        shutil.rmtree(final, ignore_errors=True)
        move_into_place(partial, final)
        for old in self._checkpoint_folders()[:-2]:
            shutil.rmtree(old)

    def latest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; warn about and pass over a damaged one."""
        for folder in reversed(self._checkpoint_folders()):
            try:
                return self._load_checkpoint(folder)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                warnings.warn(f"{folder}: damaged checkpoint ({error}); using the one before", stacklevel=2)
        return None

    def cut_metrics(self, length: int) -> None:
        """Cut metrics.jsonl back to a checkpoint's length."""
        with self.metrics_path.open("a+b") as file:
            file.truncate(length)

    def append_metrics(self, text: str) -> None:
        """Append records to metrics.jsonl and have them on disk before returning."""
        write_durably(self.metrics_path, text.encode(), mode="ab")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl; a last line that a crash cut short is left out."""
        lines = self.metrics_path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json."""
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=2).encode())

    def summary(self) -> dict[str, Any] | None:
        """Return summary.json, or None when the run has not got that far."""
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return summary

    def _checkpoint_folders(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("step-*"))

    def _load_checkpoint(self, folder: Path) -> Checkpoint:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        for name, expected in state["sha256"].items():
            if file_sha256(folder / name) != expected:
                raise ValueError(f"{name} does not have the hash it was saved with")
        weights, optimizer = (load_file(folder / f"{name}.safetensors") for name in TENSOR_FILES)
        return Checkpoint(state["step"], weights, optimizer, state["metrics_bytes"], state["seconds"])


def open_run(path: str | Path, run: RunSpec, dataset: Dataset, environment: Mapping[str, Any]) -> RunDirectory:
    """Make the directory of a run, or return it if it holds this very run; anything else there is an error.

    The tokenizer goes into the directory, so that a run can be sampled from without its data.
    """
    path = Path(path)
    identity = run_id(run, dataset.content_hash)
    if (path / "run.json").exists():
        there = read_run(path)
        if there.identity != identity:
            difference = _difference(there, run, dataset.content_hash)
            raise InputError(f"{path}: holds another run ({difference}); choose another --out or remove it")
        return there
    if path.exists() and (not path.is_dir() or any(entry.name not in _MAY_PRECEDE for entry in path.iterdir())):
        raise InputError(f"{path}: exists and is not a run of expertp; choose another --out")
    path.mkdir(parents=True, exist_ok=True)
    if dataset.tokenizer is not None:
        save_tokenizer(dataset.tokenizer, dataset.path, path)
    record = {
        "format": FORMAT,
        "identity": identity,
        "data_hash": dataset.content_hash,
        "tokenizer": asdict(dataset.tokenizer) if dataset.tokenizer else None,
        "run": run.to_tree(),
        "environment": dict(environment),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_atomically(path / "run.json", json.dumps(record, indent=2).encode())
    return RunDirectory(path, run, identity, dataset.content_hash, dataset.tokenizer)


def read_run(path: str | Path) -> RunDirectory:
    """Return the run in a directory."""
    path = Path(path)
    try:
        record = json.loads((path / "run.json").read_text(encoding="utf-8"))
        tree, identity, data_hash = record["run"], record["identity"], record["data_hash"]
        tokenizer = TokenizerIdentity(**record["tokenizer"]) if record["tokenizer"] else None
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no run here (run.json is missing); `expertp train` makes one") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise InputError(f"{path}/run.json: damaged; restore it or train again into another directory") from None
    return RunDirectory(path, run_from_tree(tree, f"{path}/run.json"), identity, data_hash, tokenizer)


def _difference(there: RunDirectory, run: RunSpec, data_hash: str) -> str:
    """Name the first field in which two runs differ."""
    ours, theirs = run.to_tree(), there.run.to_tree()
    for section, values in ours.items():
        if not isinstance(values, dict):
            values, theirs[section] = {section: values}, {section: theirs[section]}
        for key, value in values.items():
            if key != "data" and value != theirs[section].get(key):
                return f"{section}.{key}={theirs[section].get(key)} there, {value} here"
    return "other data" if data_hash != there.data_hash else "made by another version"
