"""Keys and values of earlier positions, so that generation computes new positions only.

Shapes: B sequences, H heads, S new positions, P all positions up to the newest, C capacity, D d_head.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """Keys and values of one attention layer, for at most `capacity` positions."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._stored: tuple[Tensor, Tensor] | None = None

    def append(
        self, k_BHSD: Float[Tensor, "B H S D"], v_BHSD: Float[Tensor, "B H S D"]
    ) -> tuple[Float[Tensor, "B H P D"], Float[Tensor, "B H P D"]]:
        """Store keys and values of new positions; return those of all positions."""
        if self._stored is None:
            B, H, _, D = k_BHSD.shape
            self._stored = (k_BHSD.new_empty(B, H, self.capacity, D), v_BHSD.new_empty(B, H, self.capacity, D))
        start, self.length = self.length, self.length + k_BHSD.shape[2]
        assert self.length <= self.capacity, "positions beyond the capacity of the cache"
        k_BHCD, v_BHCD = self._stored
        k_BHCD[:, :, start : self.length] = k_BHSD
        v_BHCD[:, :, start : self.length] = v_BHSD
        return k_BHCD[:, :, : self.length], v_BHCD[:, :, : self.length]

    def repeated(self, count: int) -> LayerCache:
        """Return a copy in which every sequence stands `count` times."""
        copy = LayerCache(self.capacity)
        copy.length = self.length
        if self._stored is not None:
            k_BHCD, v_BHCD = self._stored
            copy._stored = (k_BHCD.repeat_interleave(count, 0), v_BHCD.repeat_interleave(count, 0))
        return copy


@dataclass(frozen=True)
class KeyValueCache:
    """The caches of all layers of a model, which makes it with `empty_cache`, and reads and fills it in `hidden`."""

    layers: tuple[LayerCache, ...]

    @property
    def length(self) -> int:
        """Positions of which the cache has keys and values."""
        return self.layers[0].length

    def repeated(self, count: int) -> KeyValueCache:
        """Return a copy in which every sequence stands `count` times."""
        return KeyValueCache(tuple(layer.repeated(count) for layer in self.layers))
