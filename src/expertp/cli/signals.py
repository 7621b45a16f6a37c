"""SIGTERM and Ctrl-C as a request: long work asks whether one has come, saves and stops."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """Remembers SIGTERM or SIGINT, so that work can save before it ends; a second one acts as usual."""

    def __init__(self) -> None:
        self.number = 0

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Take the signal, and none after it."""
        del frame
        self.number = number
        signal.signal(number, signal.SIG_DFL)

    def received(self) -> bool:
        """Return whether a signal has come."""
        return self.number != 0


@contextmanager
def stop_signal() -> Iterator[StopSignal]:
    """Listen for SIGTERM and SIGINT, and put the handlers back at the end."""
    stop = StopSignal()
    before = {number: signal.signal(number, stop.remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
