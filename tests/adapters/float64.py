"""Models of transformers in true float64: they cast to float32 inside, which would hide differences below 1e-8."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    """Turn casts to float32 into casts to float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        kwargs = {key: wide(value) for key, value in (kwargs or {}).items()}
        if func is torch.Tensor.float:
            return args[0].double()
        return func(*map(wide, args), **kwargs)
