"""Interleaved timing: on a shared machine only ratios of times measured close together are meaningful."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from expertp.util.machine import processor_name


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement; `gemm_gflops` is the measured speed of a large float32 matrix product."""

    processor: str
    cores: int | None
    threads: int
    torch: str
    gemm_gflops: float


def interleaved(contestants: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2) -> dict[str, float]:
    """Return the median time of each contestant in milliseconds; every round runs all of them once.

    The order rotates between rounds, because a contestant that frees much memory slows down the next one.

    >>> sorted(interleaved({"a": lambda: None, "b": lambda: None}, rounds=1))
    ['a', 'b']
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(warm_up + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            started = time.perf_counter()
            contestants[name]()
            if number >= warm_up:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in times.items()}


def describe_machine() -> Machine:
    """Return a description of the machine, and time a large matrix product on it."""
    size = 1024
    a, b = torch.randn(size, size), torch.randn(size, size)
    milliseconds = interleaved({"gemm": lambda: a @ b}, rounds=5)["gemm"]
    return Machine(
        processor=processor_name(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        gemm_gflops=round(2 * size**3 / milliseconds / 1e6, 1),
    )
