"""SIGTERM and Ctrl-C as requests that long work can poll, so that it saves and stops."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# A second SIGTERM within this time is the same request: schedulers signal every process of a job, and launchers such
# as torchrun pass on what they get.
SAME_REQUEST_SECONDS = 10.0


class StopSignal:
    """Record SIGTERM or SIGINT; a second signal has its default effect, a second SIGTERM only after some seconds."""

    def __init__(self) -> None:
        self.number = 0
        self._first = dict[int, float]()  # when a signal came first

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Record the signal."""
        del frame
        now = time.monotonic()
        if number not in self._first:
            self.number, self._first[number] = number, now
        elif number == signal.SIGINT or now - self._first[number] > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

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
