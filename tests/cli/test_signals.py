"""SIGTERM and Ctrl-C as requests, in processes of their own."""

import signal
import subprocess
import sys

import pytest

# Takes half a second to save after it was asked to stop.
SAVES = """
import sys, time
from expertp.cli import signals
signals.SAME_REQUEST_SECONDS = float(sys.argv[1])
with signals.stop_signal() as stop:
    print("ready", flush=True)
    while not stop.received():
        time.sleep(0.01)
    print("told", flush=True)
    time.sleep(0.5)
    print("saved", flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("number", "same_seconds", "expected"),
    [
        (signal.SIGTERM, 10.0, ("saved\n", 0)),
        (signal.SIGTERM, 0.0, ("", -signal.SIGTERM)),
        (signal.SIGINT, 10.0, ("", -signal.SIGINT)),
    ],
)
def test_a_second_sigterm_within_seconds_is_the_same_request(
    number: int, same_seconds: float, expected: tuple[str, int]
) -> None:
    command = [sys.executable, "-c", SAVES, str(same_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "told\n"
        process.send_signal(number)
        assert (process.stdout.read(), process.wait(timeout=30)) == expected
