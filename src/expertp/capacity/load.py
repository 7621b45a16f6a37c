"""From a file to a job: run files and directories, base and target files, plans, config.json of transformers."""

import json
from collections.abc import Sequence
from pathlib import Path

from expertp.adapters.keys import CONFIG_FILE
from expertp.capacity.job import JobSpec
from expertp.config import load_run, load_spec, sections_of, spec_from_sections
from expertp.errors import InputError
from expertp.spec import BaseHPs, RunSpec, Spec
from expertp.util.records import read_bounded

RUN_RECORD = "run.json"


def load_job(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Read the job of a run, or of a model without a section `train:`."""
    path = _file_in(path)
    if _is_adapted_plan(path):
        return spec_from_sections(JobSpec, {"model": {"planned": str(path)}}, overrides, f"{path}:")
    sections = sections_of(path)
    if {"axes", "seeds"} & sections.keys():
        raise InputError(f"{path}: is a study; `expertp sweep --dry-run` shows its cost")
    if "run" in sections and "format" in sections:
        return JobSpec.of_run(load_spec(RunSpec, path, overrides, record="run"))
    if "train" in sections and "hps" in sections:
        return JobSpec.of_run(load_run(path, overrides))
    if "model_type" in sections or "text_config" in sections:
        return spec_from_sections(JobSpec, {"model": {"hf": str(path)}}, overrides, f"{path}:")
    if "target" in sections and "groups" in sections:
        return spec_from_sections(JobSpec, {"model": sections["target"]}, overrides, f"{path}:")
    known = {name: value for name, value in sections.items() if name != "hps"}
    if "hps" in sections:
        spec_from_sections(_Base, {"hps": sections["hps"]}, (), f"{path}:")
    if "model" not in sections:
        raise InputError(f"{path}: section 'model:' is missing; give a run, base or target file, or a {CONFIG_FILE}")
    return spec_from_sections(JobSpec, known, overrides, f"{path}:")


class _Base(Spec):
    hps: BaseHPs


def _is_adapted_plan(path: Path) -> bool:
    """Return whether a file is the plan of a model of transformers, which may be larger than a file of settings."""
    try:
        tree = json.loads(read_bounded(path, ""))
    except (OSError, ValueError, RecursionError):  # what it is, its own reader says
        return False
    return isinstance(tree, dict) and {"family", "tensors"} <= tree.keys()


def _file_in(path: Path) -> Path:
    """Return the file that describes a directory: of a run, or of a model of transformers."""
    if not path.is_dir():
        return path
    for name in (RUN_RECORD, CONFIG_FILE):
        if (path / name).is_file():
            return path / name
    raise InputError(f"{path}: has neither {RUN_RECORD} nor {CONFIG_FILE}; give the directory of a run or a file")
