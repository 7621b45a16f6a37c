"""How solvers and trainings tell how far they are."""

from collections.abc import Callable

# Told how many steps of how many are done.
Tick = Callable[[int, int], None]


def silent(_done: int, _total: int, /) -> None:
    """Tell nobody."""


class Parts:
    """Several trainings or solutions as parts of one whole of so many steps."""

    def __init__(self, tick: Tick, total: int) -> None:
        self._tick, self._total, self._begun = tick, total, 0

    def next(self, steps: int) -> Tick:
        """Return what the next part, of so many steps, tells its progress to."""
        before, self._begun = self._begun, self._begun + steps
        return lambda done, _: self._tick(before + done, self._total)
