"""Speed of matrix products on this machine: what the speed of training is compared with."""

import statistics
import time
from functools import cache

import torch

from expertp.spec import Dtype

# The time for which matrices are multiplied, their size, and the number of products before the device is waited for: a
# GPU is fast at large products only, and starting one takes longer than a small one.
PRODUCT_SECONDS = 0.1
PRODUCT_SIZE = {"cpu": 512, "cuda": 4096}
PRODUCTS_AT_A_TIME = {"cpu": 1, "cuda": 16}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def product_speed(device: str, dtype: Dtype = "float32") -> float:
    """Return the FLOPs per second of matrix products in a resolved dtype, with the threads that torch has now.

    It is measured once per process.
    """
    return _measured(device, dtype, torch.get_num_threads())


@cache
def _measured(device: str, dtype: Dtype, threads: int) -> float:
    del threads
    kind = torch.device(device).type
    size, products = PRODUCT_SIZE[kind], PRODUCTS_AT_A_TIME[kind]
    left = torch.ones(size, size, device=device, dtype=DTYPES[dtype])
    (left @ left)[0, 0].item()  # the first product is slow
    times, ends_at = list[float](), time.perf_counter() + PRODUCT_SECONDS
    while time.perf_counter() < ends_at or not times:
        began = time.perf_counter()
        for _ in range(products):
            product = left @ left
        product[0, 0].item()
        times.append(time.perf_counter() - began)
    return products * 2.0 * size**3 / statistics.median(times)
