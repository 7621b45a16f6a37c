import ctypes
import os
from pathlib import Path

import pytest

from expertp.util.machine import core_share, memory_bytes, processor_name, release_memory


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
