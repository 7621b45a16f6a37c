"""Live pages: what a study and a run show while they are trained, read-only and at a bounded cost."""

import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from html import unescape
from urllib.request import urlopen

import pytest
from report.live_pages import open_page, sections_of
from runs import tiny_run, write_tokens
from synthetic import ENVIRONMENT, _record, _write_run, final_loss, study_spec, write_study

from expertp.cli.main import main
from expertp.data import open_dataset
from expertp.errors import InputError
from expertp.report import live
from expertp.report.build import render_report
from expertp.report.live import Budget, Follower, Part, View
from expertp.report.live_charts import MOST_CELLS, Line, heat_map, line_chart
from expertp.report.live_run import learning_rates
from expertp.report.live_server import make_server, page_of, state_of
from expertp.study.store import open_study, read_study
from expertp.training.records import RunResult
from expertp.training.resolution import resolved
from expertp.training.store import open_run

NAME = """<img src=x onerror="alert('no')">"""


def small_study(path):
    """Return a study of 12 runs, with markup in its names."""
    tokens = write_tokens(path.parent / f"{path.name}-tokens")
    return study_spec(
        tokens,
        name=NAME,
        axes={"width": {"sizes": [32, 64], "sweep": ["log2_lr"]}},
        grids={"log2_lr": [-8, -7, -6]},
        seeds=[0, 1],
        arms={},
    )


def is_wide(run):
    return run.model.n_embd == 64


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


def text_of(view, anchor="now"):
    return unescape({part.anchor: part.html for part in view.parts}[anchor])


def begin_run(directory, identity, steps):
    """Write the records of a run that is being trained."""
    run = resolved(directory.runs[identity], directory.device)
    with open_run(directory.place(identity), run, open_dataset(run.train.data), ENVIRONMENT) as place:
        place.append_metrics(_record(run, step, run.train.steps, final_loss(run)) for step in range(1, steps + 1))


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A study whose base is trained, and nothing else."""
    path = tmp_path_factory.mktemp("live") / "study"
    return write_study(path, small_study(path), skip=is_wide)


@pytest.mark.heavy
def test_a_study_is_shown_with_what_runs_and_comes_next_and_nothing_is_written(half):
    first, *_ = half.training_order
    begin_run(half, first, 12)
    follower = Follower(half.path, Budget(share=0.0))
    with half.at_work(first):
        before = contents(half.path.parent)
        view = follower.look()
        now = text_of(view)
        assert contents(half.path.parent) == before
    assert 0 < view.cores < 8
    assert (view.is_provisional, view.title) == (True, f"6/12 {NAME}")
    assert "1 run in training, 5 left" in now
    assert "width (n_embd) 64, expertp, lr 2^−6, seed 1" in now
    assert all(each in now for each in ("12 of 40", "1k</dd>", "<polyline"))
    assert "the verdict of this axis needs it" in now
    assert [part.anchor for part in view.parts] == ["now"], "no share of the time, no figures"
    assert NAME not in view.parts[0].html
    assert NAME in now


@pytest.mark.heavy
def test_figures_are_drawn_within_the_budget_and_again_only_if_their_numbers_change(half, monkeypatch):
    from expertp.report import live_study

    drawn = []
    original = live_study.render
    monkeypatch.setattr(live_study, "render", lambda *args, **how: drawn.append(args[0]) or original(*args, **how))
    first, *_ = half.training_order
    begin_run(half, first, 12)
    budget = Budget(share=0.0)
    follower = Follower(half.path, budget)
    with half.at_work(first):
        assert len(follower.look().parts) == 1
        budget.share = math.inf
        shown = follower.look()
    assert [part.anchor for part in shown.parts][:4] == ["now", "overview", "verdict", "curves"]
    assert drawn
    count = len(drawn)
    assert [part.version for part in follower.look().parts[1:]] == [part.version for part in shown.parts[1:]]
    half.note_failure(first, "RuntimeError: <b>out of luck</b>")
    half.note_failure(first, "RuntimeError: <b>out of luck</b>")
    again = follower.look()
    half._failure_path(first).unlink()
    assert "RuntimeError: <b>out of luck</b>" in text_of(again, "failures")
    assert "out of luck" in text_of(again)
    assert len(drawn) == count, "the numbers of no figure have changed"


@pytest.mark.heavy
def test_a_look_at_hundreds_of_runs_is_cheap_and_shows_what_has_ended_meanwhile(directory, tmp_path):
    shutil.copytree(directory.path, tmp_path / "study")
    study = read_study(tmp_path / "study")
    total, left = len(study.runs), [each.identity for each in study.results() if each.status == "missing"]
    ended = total - len(left)
    assert ended >= 200
    begin_run(study, left[0], 12)
    follower = Follower(study.path, Budget(share=0.0))
    with study.at_work(left[0]):
        assert follower.look().title == f"{ended}/{total} synthetic"
        view = follower.look()
        assert view.title == f"{ended}/{total} synthetic"
        assert view.look_seconds < 0.25, "what has ended is not read again"
        for identity in left[1:4]:
            _write_run(study, identity, study.runs[identity], 3.0, diverged=False)
        assert follower.look().title == f"{ended + 3}/{total} synthetic"


def follow_verb(path, wanted):
    """Start `expertp watch`, ask until the page has the wanted parts; return its state and the text of all parts."""
    process, line = begin_watch(path)
    with process:
        address = line.split(" at ")[1].split()[0]
        until = time.monotonic() + 60
        state = {"parts": []}
        while not wanted <= {anchor for anchor, _ in state["parts"]} and time.monotonic() < until:
            time.sleep(0.2)
            with urlopen(f"{address}state") as answer:
                state = json.load(answer)
        texts = []
        for anchor, _ in state["parts"]:
            with urlopen(f"{address}part/{anchor}") as answer:
                texts.append(unescape(answer.read().decode()))
        process.send_signal(signal.SIGINT)
    return state, "".join(texts)


@pytest.mark.heavy
def test_a_study_that_has_ended_before_is_shown_whole(tmp_path):
    directory = write_study(tmp_path / "study", small_study(tmp_path / "study"))
    state, text = follow_verb(directory.path, {"now", "overview", "verdict", "curves", "commands"})
    assert state["title"] == f"12/12 {NAME}"
    assert "All 12 runs have ended" in text
    assert "The report below is complete" in text


def test_the_budget_is_a_share_of_the_training_time(monkeypatch):
    monkeypatch.setattr(live.time, "process_time", lambda: 3.0)
    assert not Budget(0.02, trained_seconds=399).allows(5.0)
    assert Budget(0.02, trained_seconds=400).allows(5.0)


@pytest.mark.parametrize("cores", [0.5, 1, 8])
@pytest.mark.parametrize("seconds", [0.001, 0.1, 1, 10])
def test_looks_keep_to_the_share_however_expensive_they_are(seconds, cores):
    cost = seconds * cores
    pause = live.pause_after(View("", (), cores=cores, look_seconds=cost))
    assert cost <= live.SHARE * cores * pause
    assert live.pause_after(View("", (), cores=1e-9, look_seconds=1)) == live.LONGEST_PAUSE


def test_a_page_asks_often_enough_for_the_thread_to_go_on_after_a_long_pause():
    wait = json.loads(state_of(View("", ()), live.LONGEST_PAUSE))["wait"] / 1000
    assert wait < live.IDLE_SECONDS / 2
    assert json.loads(state_of(View("", ()), 2.0))["wait"] == 2000


def test_before_a_study_and_with_damage_the_page_says_so_and_goes_on(tmp_path, half):
    path = tmp_path / "later" / "study"
    follower = Follower(path, Budget(share=0.0))
    assert "holds no study and no run yet" in text_of(follower.look())
    assert not path.parent.exists()
    path.mkdir(parents=True)
    assert "holds no study" in text_of(follower.look())
    record = (half.path / "study.json").read_text(encoding="utf-8")
    (path / "study.json").write_text(record[:50], encoding="utf-8")
    assert "study.json: damaged" in text_of(follower.look(), "trouble")
    (path / "study.json").write_text(record, encoding="utf-8")
    view = follower.look()
    assert [part.anchor for part in view.parts] == ["now"]
    assert "No worker is active; 12 runs left" in text_of(view)


def test_a_run_is_shown_with_its_losses_rates_loads_and_speed(tmp_path):
    data = write_tokens(tmp_path / "tokens", train=4_000, val=2_000)
    run = tiny_run(
        data, train={"steps": 40, "schedule": "cosine"}, base={**tiny_run(data).model.to_dict(), "n_embd": 16}
    )
    out = tmp_path / "run"
    follower = Follower(out)
    with open_run(out, run, open_dataset(data), ENVIRONMENT) as place:
        assert "No step is recorded yet" in text_of(follower.look())
        place.append_metrics(_record(run, step, 40, 2.0) for step in range(1, 21))
        before = contents(out)
        view = follower.look()
        now = text_of(view)
        assert contents(out) == before
        assert "In training, step 20 of 40" in now
        assert view.cores == 1
        for title in ("Loss", "Learning rates", "Loads", "Tokens per second", "Share of the speed of matrix products"):
            assert f"<b>{title}</b>" in now
        rates = dict(learning_rates(run))
        assert rates["router"] == rates["embedding"] / 2
        assert f"{rates['router']:.3g}: " in now
        assert now.count("<rect") == 20 * run.model.n_layer
        os.utime(out / "metrics.jsonl", (1, 1))
        assert "the run seems to be stopped" in text_of(follower.look())
        place.write_summary(RunResult("finished", 40, 40, 1, 2.0, 2.0, 0.1, 0, 12.0))
    assert "Finished at step 40 of 40, after 12 s" in text_of(follower.look())
    (out / "metrics.jsonl").write_text("nonsense\n", encoding="utf-8")
    assert "metrics.jsonl, line 1: damaged" in text_of(follower.look())


def test_charts_show_what_is_finite():
    nan = math.nan
    chart = line_chart([Line([(1, 3.0), (2, nan), (3, 2.0)]), Line([(2, math.inf)]), Line([(3, 2.5)])], 10, 'a "b"')
    assert chart.count("<polyline") == chart.count("<circle") == 1
    assert "nan" not in chart
    assert 'aria-label="a &#34;b&#34;"' in chart
    assert "no record yet" in line_chart([Line([(1, nan)])], 10, "")
    assert "nan" not in line_chart([Line([(1, 0.0), (2, 0.1), (3, 0.1)])], 0, "", is_log=True)
    many = heat_map([(step, [0.1] * 50) for step in range(1, 5001)], 5000, 0.1, "")
    assert many.count("<rect") <= MOST_CELLS


def test_a_spike_of_one_step_is_on_a_heat_map_of_many_steps():
    columns = [(step, [0.5 if step == 1234 else 0.0, 0.0]) for step in range(1, 100_001)]
    shown = re.findall(r'fill-opacity="([\d.]+)"', heat_map(columns, 100_000, 0.5, ""))
    assert len(shown) <= MOST_CELLS
    assert sorted(map(float, shown), reverse=True)[:2] == [1.0, 0.0]


@pytest.fixture
def server(half):
    follower = Follower(half.path, Budget(share=0.0))
    with make_server(follower) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        follower.start()
        yield made
        follower.stop()
        made.shutdown()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_server_answers_this_machine_only_and_with_a_strict_policy(server):
    assert server.server_address[0] == "127.0.0.1"
    answer, page = ask(server, "/")
    assert answer.status == 200
    policy = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "<script src=" in page
    assert "script-src 'self'" in unescape(page)
    assert "<script>" not in page
    assert json.loads(ask(server, "/state")[1])["parts"][0][0] == "now"
    assert "Transfer study" in ask(server, "/part/now")[1]
    assert "connect" not in ask(server, "/script.js")[0].getheader("Content-Type")
    for path in ("/part/nothing", "/../study.json", "/study.json", "/part/"):
        assert ask(server, path)[0].status == 404
    assert ask(server, "/", "POST")[0].status == 501
    for host in ("evil.example", "evil.example:80", "", "192.168.0.7"):
        assert ask(server, "/state", Host=host)[0].status == 403
    for host in ("localhost:9", "127.0.0.1", "[::1]:80"):
        assert ask(server, "/state", Host=host)[0].status == 200


def test_a_port_in_use_and_a_file_in_place_of_a_directory_are_one_line(server, tmp_path, capsys):
    port = server.server_address[1]
    with pytest.raises(InputError, match=rf"cannot serve at 127\.0\.0\.1, port {port}: .*choose another --port"):
        make_server(server.follower, port=port)
    with pytest.raises(InputError, match="no such port"):
        make_server(server.follower, port=99_999)
    file = tmp_path / "file"
    file.touch()
    assert main(["watch", str(file)]) == 2
    assert (
        capsys.readouterr().err == f"expertp: {file}: is not a directory; give the directory of a study or of a run\n"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "nosuch.invalid", "fe80::1", "a..b"])
def test_a_bad_address_is_not_blamed_on_the_port(host, tmp_path):
    with pytest.raises(InputError, match=rf"cannot serve at {host}, port 0: .*; give --host an address") as error:
        make_server(Follower(tmp_path), host)
    assert "--port" not in str(error.value)


def test_an_address_of_version_6_may_have_brackets(tmp_path):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    for host in ("::1", "[::1]"):
        with make_server(Follower(tmp_path), host) as made:
            assert made.address == f"http://[::1]:{made.server_address[1]}/"


def begin_watch(*arguments):
    """Start `expertp watch` on a free port; return the process and the line that it prints."""
    command = [sys.executable, "-m", "expertp", "watch", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, process.stdout.readline()


@pytest.mark.heavy
@pytest.mark.parametrize(("host", "is_protected"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_another_address_is_open_to_other_machines_and_the_verb_warns(host, is_protected, tmp_path):
    process, line = begin_watch(tmp_path / "study", "--host", host)
    with process:
        port = int(line.split(" at ")[1].split()[0].rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/state", headers={"Host": "node7.cluster.example"})
        assert connection.getresponse().status == (403 if is_protected else 200)
        connection.close()
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
    assert process.returncode == 0
    assert line.startswith(f"watching {tmp_path / 'study'} at http://{host}:")
    warning = "expertp: every machine that reaches this address can read the page\n"
    assert error == ("" if is_protected else warning)


@pytest.mark.heavy
def test_without_a_browser_the_verb_says_which_address_to_open(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no browser is there
    monkeypatch.delenv("BROWSER", raising=False)
    process, line = begin_watch(tmp_path / "study", "--open")
    with process:
        address = line.split(" at ")[1].split()[0]
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == f"expertp: found no browser; open {address}\n"
    assert process.returncode == 0


@pytest.mark.heavy
def test_the_verb_serves_until_a_signal_comes_and_needs_no_torch(tmp_path):
    program = "import sys; from expertp.cli.main import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    command = [sys.executable, "-c", program, "watch", str(tmp_path / "study"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        address = line.split(" at ")[1].split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urlopen(f"{address}state") as answer:
            assert json.load(answer)["title"] == "Waiting for study"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    assert not (tmp_path / "study").exists()


@pytest.mark.heavy
def test_the_page_follows_a_study_from_before_it_begins_until_it_has_ended(browser, tmp_path, monkeypatch, visit_page):
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(live, "LONGEST_PAUSE", 0.1)
    path = tmp_path / "study"
    follower = Follower(path, Budget(share=0.0))  # no figures until the test allows them
    server = make_server(follower)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    follower.start()
    page = open_page(browser, server.address, viewport={"width": 400, "height": 800}, color_scheme="dark")
    page.get_by_text("holds no study and no run yet").wait_for()
    spec = small_study(path)
    directory = open_study(path, spec)
    page.get_by_text("No worker is active; 12 runs left").wait_for()
    first, *_ = directory.training_order
    begin_run(directory, first, 9)
    with directory.at_work(first):
        page.locator(".card polyline").wait_for()
        write_study(path, spec, skip=lambda run: run == directory.runs[first])
        follower.budget.share = math.inf
        page.locator("main.provisional #part-curves svg").wait_for()
        follower.budget.share = 0.0
        page.locator("#commands details summary").click()
        width, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width <= window, "the page scrolls sideways"
        assert "provisional" in page.evaluate(
            "getComputedStyle(document.querySelector('#curves h2'), '::after').content"
        )
    write_study(path, spec, skip=lambda run: run != directory.runs[first])  # what has ended does not change any more
    page.get_by_text("All 12 runs have ended").wait_for()
    page.get_by_text("The report below is complete").wait_for()
    page.locator("main:not(.provisional)").wait_for()
    assert page.locator("#commands details").get_attribute("open") is not None, "what the reader opened stays open"
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = false; })")
    report = visit_page(render_report(directory), {"width": 400, "height": 800})
    assert sections_of(page) == sections_of(report)
    assert page.title() == f"12/12 {NAME}"
    assert page.complaints == []
    page.route("**/state", lambda route: route.abort())
    page.locator("#lost").wait_for()
    page.unroute("**/state")
    page.locator("#lost").wait_for(state="hidden")
    page.context.close()
    follower.stop()
    server.shutdown()
    server.server_close()


def test_a_view_is_escaped_where_it_becomes_a_page():
    page = page_of(View("<b>title</b>", (Part("now", "<p>part</p>"),)))
    assert "<title>&lt;b&gt;title&lt;/b&gt;</title>" in page
    assert "<p>part</p>" in page
