"""What this machine is, for records, reports and refusals; its cores and its memory."""

import ctypes
import os
import platform
from pathlib import Path


def processor_name() -> str:
    """Return the processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def memory_bytes() -> int:
    """Return the size of the main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def release_memory() -> None:
    """Give memory that has been freed back to the system, where the C library can.

    A worker that trains one model after another would else hold several times what the largest of them needs.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return
    trim(0)


def usable_cores() -> int:
    """Return how many cores this process may use (a scheduler may grant fewer than there are)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
