"""Bytes that the ranks of a run exchange, counted while they train."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Collective = Literal["all_gather", "reduce_scatter", "all_to_all", "all_reduce"]
# Operation of torch -> kind of collective, and which argument is the larger of input and output: what is gathered, and
# what is scattered. Both are the same size in the others.
OPERATIONS: Mapping[str, tuple[Collective, int]] = {
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "c10d::allreduce_": ("all_reduce", 0),
}


class Traffic(TorchDispatchMode):
    """Count the bytes of collectives inside this context, by kind, as one rank sees them.

    The bytes of an all-gather are those of the gathered tensor, of a reduce-scatter those of the tensor that is
    scattered, of an all-to-all those that the rank passes on, to itself as well. `calls` counts collectives.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: Counter[Collective] = Counter()
        self.calls: Counter[Collective] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kind, place = OPERATIONS.get(func.name(), (None, 0))
        if kind is not None:
            tensors = [args[place]] if isinstance(args[place], Tensor) else args[place]
            self.bytes[kind] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.calls[kind] += 1
        return func(*args, **(kwargs or {}))
