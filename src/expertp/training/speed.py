"""Speed of matrix products on this machine: what the speed of training is compared with."""

import statistics
import time
from functools import cache

import torch

from expertp.spec import Dtype

# Size of the matrices, and the time for which they are multiplied.
PRODUCT_SIZE, PRODUCT_SECONDS = 512, 0.1
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def product_speed(device: str, dtype: Dtype = "float32") -> float:
    """Return the FLOPs per second of matrix products in a resolved dtype, with the threads that torch has now.

    It is measured once per process.
    """
    return _measured(device, dtype, torch.get_num_threads())


@cache
def _measured(device: str, dtype: Dtype, threads: int) -> float:
    del threads
    left = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, device=device, dtype=DTYPES[dtype])
    (left @ left)[0, 0].item()  # the first product is slow
    times, ends_at = list[float](), time.perf_counter() + PRODUCT_SECONDS
    while time.perf_counter() < ends_at or not times:
        began = time.perf_counter()
        (left @ left)[0, 0].item()
        times.append(time.perf_counter() - began)
    return 2.0 * PRODUCT_SIZE**3 / statistics.median(times)
