import ctypes
import os
from pathlib import Path

import pytest

from expertp.util.machine import core_share, local_rank_and_ranks, memory_bytes, processor_name, release_memory


def test_the_machine_has_a_name_and_memory():
    assert processor_name()
    assert memory_bytes() > 2**28


STATM = Path("/proc/self/statm")


def resident_bytes():
    return 4096 * int(STATM.read_text().split()[1])


@pytest.mark.skipif(not STATM.exists(), reason="this system does not tell what a process holds")
def test_freed_memory_goes_back_to_the_system():
    # Small blocks, of which the last stays: the library keeps all below it.
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    size = 64 * 1024
    blocks = [libc.malloc(size) for _ in range(1600)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:
        libc.free(block)
    held = resident_bytes()
    release_memory()
    assert held - resident_bytes() > 50 * 2**20
    libc.free(blocks[-1])


def test_a_library_without_trimming_is_left_alone(monkeypatch):
    monkeypatch.setattr("expertp.util.machine.ctypes.CDLL", lambda _: object())
    release_memory()


def test_the_share_of_a_core_that_a_process_gets():
    assert 0 < core_share(os.getpid()) < os.cpu_count() + 1
    assert core_share(2**22 + 1) is None


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "3,2", "SLURM_NODEID": "0"}, (1, 3)),
        ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "3,2", "SLURM_NODEID": "1"}, (1, 2)),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "2"}, (0, 2)),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, (0, 1)),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "1"}, (1, 4)),
        ({}, (0, 1)),
    ],
)
def test_nodes_of_a_step_may_have_different_numbers_of_ranks(variables, place, monkeypatch):
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert local_rank_and_ranks() == place
