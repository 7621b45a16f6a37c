"""A study of 60 runs in the browser from before its first run to its last, with its sweep killed in between."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from report.live_pages import open_page, sections_of
from runs import study_tree, write_tokens

from expertp.report.build import render_report
from expertp.study.store import read_study

TICKS = os.sysconf("SC_CLK_TCK")
NAME = "<i>sixty</i>"


def cpu_seconds(pid):
    """Return the CPU time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


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
        stack.callback(server.send_signal, signal.SIGINT)
        address = server.stdout.readline().split(" at ")[1].split()[0]
        page = open_page(browser, address)
        page.set_default_timeout(300_000)
        page.get_by_text("holds no study and no run yet").wait_for()
        first = start(*sweep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        page.locator(".card polyline").wait_for()
        assert NAME in page.locator(".eyebrow").inner_text()
        wait_for_title(page, "2[5-9]/60")
        spent = cpu_seconds(first.pid)
        first.send_signal(signal.SIGKILL)
        first.wait()
        page.get_by_text("No worker is active").wait_for()
        second = start(*sweep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        page.locator("#now-head", has_text="in training").wait_for()
        wait_for_title(page, "(59|60)/60")
        of_server = cpu_seconds(server.pid)
        wait_for_title(page, "60/60")
        _, code, usage = os.wait4(second.pid, 0)
        second.returncode = os.waitstatus_to_exitcode(code)
        assert second.returncode == 0
        page.get_by_text("The report below is complete").wait_for()
        after = cpu_seconds(server.pid)
        assert page.complaints == []
        directory = read_study(out)
        assert sorted(each.status for each in directory.results()) == ["finished"] * 60
        # The workers of the first sweep outlived it, so that the times of their runs count in place of their CPU time.
        of_sweep = usage.ru_utime + usage.ru_stime + spent
        trained = sum(each.seconds for each in directory.results())
        report = visit_page(render_report(directory), {"width": 1280, "height": 720})
        assert sections_of(page) == sections_of(report)
    with capsys.disabled():
        print(
            f"\nserver {of_server:.1f} s of CPU until the last run, {after:.1f} s with the final page; sweep "
            f"{of_sweep:.1f} s of CPU without the first workers; training {trained:.1f} s"
        )
    assert of_server <= 0.02 * max(of_sweep, trained)
