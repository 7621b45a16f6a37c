"""SIGTERM and Ctrl-C as requests that long work can poll, so that it saves and stops."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """Record SIGTERM or SIGINT; a second signal has its default effect."""

    def __init__(self) -> None:
        self.number = 0

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Record the signal and restore the default handler."""
        del frame
        self.number = number
        signal.signal(number, signal.SIG_DFL)

    def received(self) -> bool:
        """Return whether a signal was received."""
        return self.number != 0


@contextmanager
def stop_signal() -> Iterator[StopSignal]:
    """Record SIGTERM and SIGINT inside the context; restore the handlers at its end."""
    stop = StopSignal()
    before = {number: signal.signal(number, stop.remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
