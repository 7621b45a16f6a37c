"""Modules whose parameters have no values yet."""

from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils import skip_init

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def empty(kind: type[ModuleT], *sizes: int, **options: bool) -> ModuleT:
    """Return a module with uninitialized parameters on the default device; torch's `skip_init` would choose the CPU.

    >>> with torch.device("meta"):
    ...     print(empty(nn.Linear, 2, 3, bias=False).weight.device)
    meta
    """
    module: ModuleT = skip_init(kind, *sizes, device=torch.get_default_device(), **options)
    return module
