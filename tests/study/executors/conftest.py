import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters import DAEMONS, NO_SLURM, Slurm, rows, start_slurm
from runs import write_tokens

from expertp.study.executors.local import LocalExecutor
from expertp.study.spec import StudySpec
from expertp.study.store import open_study
from expertp.study.sweep import sweep


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """SLURM with two nodes; commands of SLURM in this process talk to it."""
    if not all(DAEMONS.values()):
        pytest.skip(NO_SLURM)
    slurm = start_slurm(Path(tempfile.mkdtemp(prefix="slurm-")))
    os.environ["SLURM_CONF"] = str(slurm.conf)
    try:
        yield slurm
    finally:
        del os.environ["SLURM_CONF"]
        slurm.stop()


@pytest.fixture(scope="session")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Callable[[StudySpec], list[dict[str, str]]]:
    """Return the results of a study that a worker of this machine has trained undisturbed."""
    known: dict[str, list[dict[str, str]]] = {}

    def train(study: StudySpec) -> list[dict[str, str]]:
        key = json.dumps(study.to_dict())
        if key not in known:
            path = tmp_path_factory.mktemp("quiet")
            sweep(open_study(path, study), LocalExecutor(1))
            known[key] = rows(path)
        return known[key]

    return train
