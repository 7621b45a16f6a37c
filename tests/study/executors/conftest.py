import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import DAEMONS, NO_SLURM, Slurm, start_slurm
from runs import write_tokens


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
