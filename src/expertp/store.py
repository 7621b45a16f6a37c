"""The directory of one run: the only module that knows its file names, and every write in it is atomic.

run.json        what this run is (specs, identity, data) and where it ran
metrics.jsonl   one record per logged step, append-only; cut back to the checkpoint on resume
summary.json    how it stands: status, losses, loads, seconds
checkpoints/    step-00000100/{weights,optimizer}.safetensors + state.json; the newest two are kept
"""

import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from expertp.config import OPERATIONAL, run_from_tree, run_id
from expertp.data import Dataset, TokenizerIdentity, save_tokenizer
from expertp.errors import InputError, RunError
from expertp.files import (
    exclusive,
    file_sha256,
    move_into_place,
    sync,
    temporary_name,
    write_atomically,
    write_durably,
)
from expertp.spec import RunSpec

FORMAT = 1
# Square experts (alpha_ffn = 1) transpose undetectably, so the layout is written beside the weights.
# One entry only: safetensors writes several in any order, and equal checkpoints would have unequal bytes.
WEIGHTS_METADATA = {"layout": "experts.up is [expert, in, hidden], experts.down [expert, hidden, out]"}
TENSOR_FILES = ("weights.safetensors", "optimizer.safetensors")
# What may lie in a run's directory before run.json does: a crash came first.
MAY_PRECEDE = {"tokenizer.json", *(temporary_name(Path(name)).name for name in ("tokenizer.json", "run.json"))}

_Loaded = TypeVar("_Loaded")


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


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk. Make it with `open_run` (to train) or `read_run` (to look).

    Args:
        path: the directory.
        run: what the run is.
        identity: the hash of that, data included.
        data_hash: the hash of the data's content.
        tokenizer: that of the data; None for data that does not say.
        environment: the machine that the run began on.
    """

    path: Path
    run: RunSpec
    identity: str
    data_hash: str
    tokenizer: TokenizerIdentity | None
    environment: Mapping[str, Any]

    @property
    def metrics_path(self) -> Path:
        """Where metrics.jsonl lies."""
        return self.path / "metrics.jsonl"

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint under a hidden name, put it in place with one rename, and keep the newest two."""
        folder = self.path / "checkpoints"
        folder.mkdir(exist_ok=True)
        _remove_partial(folder)
        partial = folder / f".partial-{checkpoint.step:08d}"
        try:
            self._write_checkpoint(partial, checkpoint)
            move_into_place(partial, folder / f"step-{checkpoint.step:08d}")
        except (OSError, SafetensorError) as error:
            _remove_partial(folder)
            raise RunError(
                f"the checkpoint at step {checkpoint.step} cannot be written ({error}); make room and run the same "
                "command again, it goes on from the one before"
            ) from error
        for old in self._checkpoint_folders()[:-2]:
            shutil.rmtree(old)

    def resume(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole and go back to it: whatever is later is removed.

        A damaged checkpoint is passed over with a warning. A run that has not saved any is back at its start; when all
        are damaged, it is the user who must decide to start over.
        """
        folders = self._checkpoint_folders()
        checkpoint = self._newest(self._load_checkpoint)
        if folders and checkpoint is None:
            raise InputError(f"{self.path}: no checkpoint is whole; restore one, or remove the directory to start over")
        for folder in folders:
            if checkpoint and _step_of(folder) > checkpoint.step:
                shutil.rmtree(folder)
        with self.metrics_path.open("ab") as file:
            file.truncate(checkpoint.metrics_bytes if checkpoint else 0)
        return checkpoint

    def newest_weights(self) -> Mapping[str, Tensor] | None:
        """Return the weights of the newest checkpoint that is whole, without touching anything."""
        return self._newest(lambda folder: self._load_tensors(folder, self._load_state(folder), TENSOR_FILES[0]))

    def drop_checkpoints(self) -> None:
        """Remove all checkpoints: the run has ended and only its records are wanted."""
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)

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
        except ValueError:
            raise InputError(f"{self.path}/summary.json: damaged; remove it and run the same command again") from None
        return summary

    def _checkpoint_folders(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("step-*"), key=_step_of)

    def _write_checkpoint(self, folder: Path, checkpoint: Checkpoint) -> None:
        folder.mkdir()
        tensors = dict(zip(TENSOR_FILES, (checkpoint.weights, checkpoint.optimizer), strict=True))
        for name, values in tensors.items():
            save_file(dict(values), folder / name, metadata=WEIGHTS_METADATA)
            (folder / name).chmod(folder.stat().st_mode & 0o666)  # safetensors makes it for the owner alone
            sync(folder / name)
        state = {
            "format": FORMAT,
            "identity": self.identity,
            "step": checkpoint.step,
            "metrics_bytes": checkpoint.metrics_bytes,
            "seconds": checkpoint.seconds,
            "sha256": {name: file_sha256(folder / name) for name in TENSOR_FILES},
        }
        write_durably(folder / "state.json", json.dumps(state, indent=2).encode())

    def _newest(self, load: Callable[[Path], _Loaded]) -> _Loaded | None:
        """Return what `load` makes of the newest checkpoint that it can read."""
        folders = self._checkpoint_folders()
        for place in reversed(range(len(folders))):
            try:
                return load(folders[place])
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                instead = "using the one before" if place else "there is none before it"
                warnings.warn(f"{folders[place]}: damaged checkpoint ({error}); {instead}", stacklevel=3)
        return None

    def _load_checkpoint(self, folder: Path) -> Checkpoint:
        state = self._load_state(folder)
        if self.metrics_path.stat().st_size < state["metrics_bytes"]:
            raise ValueError("metrics.jsonl is shorter than it was when this was saved")
        weights, optimizer = (self._load_tensors(folder, state, name) for name in TENSOR_FILES)
        return Checkpoint(state["step"], weights, optimizer, state["metrics_bytes"], state["seconds"])

    def _load_state(self, folder: Path) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["format"] != FORMAT or state["identity"] != self.identity or state["step"] != _step_of(folder):
            raise ValueError("state.json belongs to another run, step or version")
        return state

    def _load_tensors(self, folder: Path, state: dict[str, Any], name: str) -> dict[str, Tensor]:
        if file_sha256(folder / name) != state["sha256"][name]:
            raise ValueError(f"{name} does not have the hash it was saved with")
        return load_file(folder / name)


@contextmanager
def open_run(
    path: str | Path, run: RunSpec, dataset: Dataset, environment: Mapping[str, Any]
) -> Iterator[RunDirectory]:
    """Hold the directory of a run for this process, made if need be; another run or other files there are an error.

    The tokenizer goes into the directory, so that a run can be sampled from without its data.
    """
    path = Path(path)
    with exclusive(path, f"{path}: another process is training this run; wait for it or stop it"):
        if not (path / "run.json").exists():
            if any(entry.name not in MAY_PRECEDE for entry in path.iterdir()):
                raise InputError(f"{path}: has files and is not a run of expertp; choose another --out")
            _write_run(path, run, dataset, environment)
        directory = read_run(path)
        if directory.identity != run_id(run, dataset.content_hash):
            difference = _difference(directory, run, dataset.content_hash)
            raise InputError(f"{path}: holds another run ({difference}); choose another --out or remove it")
        for name, here in environment.items():
            if (there := directory.environment.get(name)) != here:
                warnings.warn(f"{path}: began with {name} {there}, now {here}; the last bits may differ", stacklevel=3)
        yield directory


def read_run(path: str | Path) -> RunDirectory:
    """Return the run in a directory."""
    path = Path(path)
    try:
        record = json.loads((path / "run.json").read_text(encoding="utf-8"))
        tokenizer = TokenizerIdentity(**record["tokenizer"]) if record["tokenizer"] else None
        tree, rest = record["run"], (record["identity"], record["data_hash"], tokenizer, dict(record["environment"]))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no run here (run.json is missing); `expertp train` makes one") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path}/run.json: damaged; restore it or train again into another directory") from None
    return RunDirectory(path, run_from_tree(tree, f"{path}/run.json"), *rest)


def write_ended_run(
    path: Path, run: RunSpec, identity: str, data_hash: str, summary: Mapping[str, Any], metrics: str
) -> None:
    """Write a run that has ended elsewhere and of which only results are known: nothing can go on from it."""
    path.mkdir(parents=True, exist_ok=True)
    record = _as_record(run, identity, data_hash, None, {"imported": True})
    write_atomically(path / "run.json", json.dumps(record, indent=2).encode())
    write_atomically(path / "metrics.jsonl", metrics.encode())
    write_atomically(path / "summary.json", json.dumps(summary, indent=2).encode())


def _write_run(path: Path, run: RunSpec, dataset: Dataset, environment: Mapping[str, Any]) -> None:
    if dataset.tokenizer is not None:
        save_tokenizer(dataset.tokenizer, dataset.path, path)
    record = _as_record(run, run_id(run, dataset.content_hash), dataset.content_hash, dataset.tokenizer, environment)
    write_atomically(path / "run.json", json.dumps(record, indent=2).encode())


def _as_record(
    run: RunSpec,
    identity: str,
    data_hash: str,
    tokenizer: TokenizerIdentity | None,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "identity": identity,
        "data_hash": data_hash,
        "tokenizer": asdict(tokenizer) if tokenizer else None,
        "run": run.to_tree(),
        "environment": dict(environment),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _difference(there: RunDirectory, run: RunSpec, data_hash: str) -> str:
    """Name the first field that makes two runs different ones."""
    theirs = there.run.to_tree()
    for section, ours in run.to_tree().items():
        if not isinstance(ours, dict):
            if ours != theirs[section]:
                return f"{section}={theirs[section]} there, {ours} here"
            continue
        for key, value in ours.items():
            if key not in OPERATIONAL.get(section, ()) and value != theirs[section].get(key):
                return f"{section}.{key}={theirs[section].get(key)} there, {value} here"
    return "other data" if data_hash != there.data_hash else "made by another version"


def _remove_partial(folder: Path) -> None:
    for left_over in folder.glob(".partial-*"):
        shutil.rmtree(left_over)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
