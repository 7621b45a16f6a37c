"""A study of 60 runs in the browser from before its first run to its last, with its sweep killed in between."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from report.live_pages import open_page, sections_of
from runs import study_tree, write_tokens

from expertp.report.build import render_report
from expertp.study.store import read_study

TICKS = os.sysconf("SC_CLK_TCK")
NAME = "<i>sixty</i>"


def stat_of(pid):
    """Return the fields of a process's stat after its name."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def cpu_seconds(pid):
    """Return the CPU time of a process and of its children that have ended."""
    return sum(map(int, stat_of(pid)[11:15])) / TICKS


class CpuOfTree:
    """The CPU time of processes and of all that they start, also of those that outlive their parent.

    It is a little too small: the last fraction of a second of a process is not seen.
    """

    def __init__(self):
        self._seconds = {}
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    @property
    def seconds(self):
        return sum(self._seconds.values())

    def add(self, pid):
        self._seconds[pid] = 0.0

    def _follow(self):
        while not self._has_ended.wait(0.2):
            for pid in sorted(int(each.name) for each in Path("/proc").glob("[0-9]*")):
                with suppress(OSError):  # it has ended
                    fields = stat_of(pid)
                    if pid in self._seconds or int(fields[1]) in self._seconds:
                        self._seconds[pid] = max(self._seconds.get(pid, 0.0), sum(map(int, fields[11:13])) / TICKS)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._has_ended.set()
        self._thread.join()


def start(*arguments, **options):
    return subprocess.Popen([sys.executable, "-m", "expertp", *map(str, arguments)], text=True, **options)


def wait_for_title(page, pattern):
    """Wait for a title; the page's policy forbids what `page.wait_for_function` does."""
    ends_at = time.monotonic() + 900
    while not re.match(pattern, page.title()):
        assert time.monotonic() < ends_at
        page.wait_for_timeout(200)


@pytest.mark.slow
def test_a_study_of_sixty_runs_is_watched_through_a_kill_within_two_percent(browser, visit_page, tmp_path, capsys):
    tree = study_tree(write_tokens(tmp_path / "tokens"), (-9, -8, -7, -6, -5), (0, 1, 2), steps=800, eval_every=800)
    tree |= {"name": NAME, "axes": {"width": {"sizes": [32, 64, 96, 128], "sweep": ["log2_lr"]}}}
    tree["hps"]["lr"] = 2.0**-7
    (tmp_path / "study.yaml").write_text(json.dumps(tree), encoding="utf-8")
    out = tmp_path / "study"
    sweep = ("sweep", tmp_path / "study.yaml", "--out", out, "--workers", "1")
    with start("watch", out, "--port", "0", stdout=subprocess.PIPE) as server, ExitStack() as stack:
        of_sweeps = stack.enter_context(CpuOfTree())
        stack.callback(server.send_signal, signal.SIGINT)
        address = server.stdout.readline().split(" at ")[1].split()[0]
        page = open_page(browser, address)
        page.set_default_timeout(300_000)
        page.get_by_text("holds no study and no run yet").wait_for()
        first = start(*sweep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        of_sweeps.add(first.pid)
        page.locator(".card polyline").wait_for()
        assert NAME in page.locator(".eyebrow").inner_text()
        wait_for_title(page, "2[5-9]/60")
        first.send_signal(signal.SIGKILL)
        first.wait()
        page.get_by_text("No worker is active").wait_for()
        second = start(*sweep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        of_sweeps.add(second.pid)
        page.locator("#now-head", has_text="in training").wait_for()
        wait_for_title(page, "(59|60)/60")
        of_server, of_training = cpu_seconds(server.pid), of_sweeps.seconds
        wait_for_title(page, "60/60")
        assert second.wait() == 0
        page.get_by_text("The report below is complete").wait_for()
        after = cpu_seconds(server.pid)
        assert page.complaints == []
        directory = read_study(out)
        assert sorted(each.status for each in directory.results()) == ["finished"] * 60
        report = visit_page(render_report(directory), {"width": 1280, "height": 720})
        assert sections_of(page) == sections_of(report)
    trained = sum(each.seconds for each in directory.results())
    with capsys.disabled():
        print(
            f"\nCPU time: server {of_server:.1f} s until the last run, {after:.1f} s with the final page; sweeps with "
            f"their workers {of_training:.1f} s until the last run, {of_sweeps.seconds:.1f} s in all; wall time of the "
            f"runs {trained:.1f} s"
        )
    assert of_server <= 0.02 * of_training
