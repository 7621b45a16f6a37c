import csv
import io
import json
import math
import os
import re
import shutil
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from runs import write_tokens
from synthetic import final_loss, study_spec, write_study

from expertp.errors import InputError
from expertp.figures import balance, collapse
from expertp.figures.labels import ZERO_WIDTH
from expertp.figures.save import file_name
from expertp.report import commands
from expertp.report.build import interval, render_report, sentence
from expertp.report.reading import read, seeds_and_counts
from expertp.search.design import first_choice
from expertp.study.early_stopping import Comparison
from expertp.study.load import build_study
from expertp.study.store import open_study, read_study
from expertp.study.table import DONE
from expertp.util.statistics import Estimate

pytestmark = pytest.mark.heavy  # draws all figures of a study

SECTIONS = ["verdict", "curves", "arms", "drift", "cost", "collapse", "bigger", "balance", "coordcheck"]
SECTIONS += ["scaling", "expert-shape", "theory", "plan", "failures", "environment", "commands"]
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Tree(HTMLParser):
    """Collects elements, and complains about those that are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def test_an_adaptive_study_lists_its_next_cells_and_stopped_runs(tmp_path):
    spec = study_spec(write_tokens(tmp_path / "tokens"), axes={"width": [32, 128]}, arms={})
    study = first_choice(spec.replace(seeds=(0, 1)))
    noisy = lambda run: final_loss(run) + 0.05 * math.sin(97 * run.hps.lr + run.train.seed)  # noqa: E731
    directory = write_study(tmp_path / "study", study, loss=noisy, diverges=lambda _: False)
    far = next(identity for identity, run in directory.runs.items() if run.hps.lr == 2.0**-8)
    place = directory.directory(far)
    place.write_summary(replace(place.summary(), status="stopped", step=13, val_loss=None))
    directory.note_stop(far, Comparison(13, 4.25, 3.5))
    page = render_report(directory).read_text(encoding="utf-8")
    assert "Cells that an adaptive sweep would train next" in page
    assert "stopped early: training loss 4.2500, that of zero-shot 3.5000" in page
    assert "step 13 of" in page
    assert "1/2s" in page
    assert "] (97.5%)</td>" in page
    assert "97.5% interval" in page


@pytest.fixture(scope="module")
def tree(page):
    return Tree(page)


def test_a_second_build_gives_the_same_bytes_and_touches_no_run(directory, written):
    def contents():
        return {
            path.relative_to(directory.path): path.read_bytes()
            for path in sorted(directory.path.rglob("*"))
            if path.is_file()
        }

    before = contents()
    assert render_report(read_study(directory.path)) == written.path
    assert contents() == before


def test_the_page_is_small_and_loads_nothing(page, tree):
    assert len(page.encode()) < 5_000_000
    assert "http://" not in page
    assert "https://" not in page
    assert not tree.of("link", "img", "iframe", "object", "embed", "audio", "video", "image")
    assert not [each for each in tree.of("script") if "src" in each]
    for _, attributes in tree.elements:
        for name in ("href", "xlink:href", "src"):
            if value := attributes.get(name):
                assert value.startswith(("#", "data:text/csv")), value
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", page)


def test_the_page_is_well_formed_and_every_reference_leads_somewhere(tree):
    assert tree.open == []
    identities = [attributes["id"] for _, attributes in tree.elements if "id" in attributes]
    assert len(identities) == len(set(identities))
    for _, attributes in tree.elements:
        for name in ("href", "data-copy", "aria-labelledby"):
            for target in (attributes.get(name) or "").split():
                if name != "href" or target.startswith("#"):
                    assert target.removeprefix("#") in identities


def test_every_section_is_there_in_order(page):
    assert re.findall(r'<section id="([\w-]+)"', page) == SECTIONS
    assert [int(number) for number in re.findall(r'<h2 [^>]*><span class="n">(\d+)<', page)] == list(range(1, 12))


def test_every_figure_can_be_read_aloud(page, tree):
    figures = tree.of("svg")
    assert len(figures) >= 9
    assert all(each["role"] == "img" and each["aria-labelledby"] for each in figures)
    for labels in (each["aria-labelledby"].split() for each in figures):
        for label in labels:
            assert re.search(rf'<(title|desc) id="{label}">[^<]{{10,}}</', page)
    assert tree.of("html")[0]["lang"] == "en"
    assert all(each.get("aria-label") for each in tree.of("button"))
    assert tree.of("table")
    assert page.count("<caption>") == len(tree.of("table"))
    scrollers = [each for each in tree.of("div") if each.get("class") == "scroll"]
    assert all(each["tabindex"] == "0" and each["role"] == "region" for each in scrollers)


def test_figures_take_the_colour_of_the_text(page, tree):
    assert "currentColor" in page
    assert "#24292f" not in page
    assert "prefers-color-scheme: dark" in page


def test_every_figure_has_its_files_and_the_page_has_their_numbers(directory, written, page, tree):
    links = {each["download"]: each["href"] for each in tree.of("a") if "download" in each}
    folder = directory.path / "figures"
    names = {path.stem for path in folder.iterdir()}
    assert {f"{name}.csv" for name in names} == set(links)
    assert {"curves", "curves-sp", "arm-sp", "drift", "cost", "collapse", "bigger", "balance"} <= names
    for name in names:
        text = (folder / f"{name}.csv").read_text(encoding="utf-8")
        assert unquote(links[f"{name}.csv"].partition(",")[2]) == text
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
        assert len(list(csv.DictReader(io.StringIO(text)))) > 1


def test_counts_of_runs_stand_everywhere(page, directory):
    captions = re.findall(r"<figcaption>.*?</figcaption>", page, re.DOTALL)
    assert captions
    for caption in captions:
        assert re.search(r"n = \d", caption)
        assert re.search(r"\d+ diverged", caption)
    statuses = [result.status for result in directory.results()]
    for status in ("finished", "diverged", "failed", "missing"):
        assert f"<dt>{status}</dt><dd>{statuses.count(status)}</dd>" in page
    assert ">2/3</text>" in page  # diverged runs stand on the frame of the loss curves


def test_what_is_missing_is_a_grey_box_with_the_command(page, directory):
    boxes = re.findall(r'<div class="missing">.*?</div>\n', page, re.DOTALL)
    text = "\n".join(boxes)
    assert f"expertp sweep {directory.path}/study.json --out {directory.path}" in text
    assert f"expertp coordcheck {directory.path}/study.json --out {directory.path}/coordcheck" in text
    assert "expertp theory" in text


def test_failures_and_divergences_are_listed(page):
    failures = page[page.index('<section id="failures"') : page.index('<section id="environment"')]
    assert "RuntimeError: the disk is on fire" in failures
    assert failures.count("step 13 of 40") == 2
    assert "test machine" in page[page.index('<section id="environment"') :]


def test_the_verdicts_are_in_the_page_and_beside_it(directory, written, page):
    tree = json.loads((directory.path / "verdict.json").read_text(encoding="utf-8"))
    assert tree == json.loads(json.dumps(written.verdict.to_dict()))
    badges = re.findall(r'<span class="badge \w+">(\w+)</span>', page)
    assert badges == [each.conclusion for each in (*written.verdict.axes, *written.verdict.others)]
    assert badges[:2] == ["TRANSFERS", "TRANSFERS"]
    assert "UNDECIDED" in badges


def test_what_has_no_data_takes_no_space_and_is_named_below_the_figure(page, directory):
    for text in ("not swept</text>", "no run has ended</text>", "no cost is known</text>", "are missing</text>"):
        assert text not in page
    captions = {
        section: page[page.index(f'<section id="{section}"') :]
        .partition("<figcaption>")[2]
        .partition("</figcaption>")[0]
        for section in ("curves", "cost", "collapse", "bigger")
    }
    assert (
        "The study does not sweep init std along: experts (n_exp), expert size (alpha_ffn). To sweep it, add "
        "<code>log2_init_std</code> to <code>sweep</code> of these axes in the study file."
    ) in captions["curves"]
    for section in ("cost", "collapse", "bigger"):
        assert "Not shown: expert size (alpha_ffn). " in captions[section]
        assert f"<code>{escape(commands.sweep(directory.path))}</code> trains more." in captions[section]


def test_the_sizes_of_the_study_are_said(page):
    lead = "\n".join(re.findall(r'<p class="lead">.*?</p>', page, re.DOTALL))
    for fact in ("rule set expertp", "4× in width", "5.12k tokens", "says little about long training"):
        assert fact in lead


def test_gaps_have_their_sign(page):
    table = page[page.index('<div class="stay">Median losses') :]
    assert "loss of sp minus expertp" in table[:200]
    table = table[: table.index("</table>")]
    assert re.search(r">\+0\.27\d\d \[\+", table)  # zero-shot at 4x: the optimum of sp has moved by two octaves
    assert "not swept" in table  # the size between is not re-tuned


def test_text_of_the_study_is_escaped(directory, tmp_path):
    shutil.copytree(directory.path, tmp_path / "copy", ignore=shutil.ignore_patterns("runs"))
    record = json.loads((tmp_path / "copy/study.json").read_text(encoding="utf-8"))
    record["study"]["name"] = "<script>alert(1)</script>"
    (tmp_path / "copy/study.json").write_text(json.dumps(record), encoding="utf-8")
    page = render_report(read_study(tmp_path / "copy")).read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_study_without_a_run_has_a_report_too(directory, tmp_path):
    tree = {**directory.study.to_dict(), "verdict": None}
    empty = open_study(tmp_path / "empty", build_study(tree, "study:"))
    page = render_report(empty).read_text(encoding="utf-8")
    assert Tree(page).open == []
    assert not Tree(page).of("svg")
    assert f"{len(empty.runs)} of {len(empty.runs)} runs have not ended" in page
    assert "asks for no verdict" in page


def test_joint_scalings_one_seed_and_no_verdict_are_shown_too(tmp_path):
    spec = study_spec(
        write_tokens(tmp_path / "tokens"),
        axes={"fixed_topk": {"sizes": [4, 8], "sweep": ["log2_lr"]}},
        joint={"all": {"models": [{"n_embd": 64, "n_exp": 8, "n_act": 2}], "sweep": ["log2_lr"]}},
        grids={"log2_lr": [-8, -7, -6]},
        seeds=[0],
        arms={},
        verdict=None,
        allow_kappa_change=True,
    )
    page = render_report(write_study(tmp_path / "study", spec)).read_text(encoding="utf-8")
    assert Tree(page).open == []
    assert "all (joint scale)" in page
    assert "experts, fixed top-k (n_exp)" in page
    assert "asks for no verdict" in page
    assert "arms: {sp: {axes: [width]}}" in page[page.index('<section id="arms"') :]


NAMES = ("all ones", "lr=1/64", r"$\bad$", "_hidden", "a b", "a/b", "a-b", """<script>alert('"&')</script>""", "Ω 学习")


def test_arms_may_have_any_name(tmp_path, recwarn):
    spec = study_spec(
        write_tokens(tmp_path / "tokens"),
        axes={"width": [64]},
        grids={"log2_lr": [-8, -7, -6]},
        seeds=[0, 1],
        arms={name: {"axes": ["width"], "hps": {"bias_lr": 0.02}} for name in NAMES},
    )
    directory = write_study(tmp_path / "study", spec)
    page = render_report(directory).read_text(encoding="utf-8")
    assert Tree(page).open == []
    assert not [each for each in re.findall(r'\bid="([^"]*)"', page) if " " in each or "/" in each]
    files = [file_name(f"arm-{name}") for name in NAMES]
    assert len(set(files)) == len(NAMES)
    for name, file in zip(NAMES, files, strict=True):
        svg = (directory.path / "figures" / f"{file}.svg").read_text(encoding="utf-8")
        assert f"{escape(name, quote=False)}, zero-shot</text>" in svg.replace(ZERO_WIDTH, "")
        assert f'aria-labelledby="{file}-title {file}-desc"' in page
    assert "<script>alert" not in page
    assert [str(each.message) for each in recwarn if each.category is UserWarning] == []


@pytest.mark.parametrize(
    ("name", "problem"), [("", "is empty"), ("x" * 61, "61 characters"), ("a\u202eb", "cannot be printed")]
)
def test_a_record_with_a_name_that_no_page_can_show_is_refused_in_one_line(directory, tmp_path, name, problem):
    shutil.copytree(directory.path, tmp_path / "copy", ignore=shutil.ignore_patterns("runs"))
    record = json.loads((tmp_path / "copy/study.json").read_text(encoding="utf-8"))
    record["study"]["name"] = name
    (tmp_path / "copy/study.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(InputError, match=rf"study\.json: name: the name .*{problem}"):
        read_study(tmp_path / "copy")


def test_a_coordinate_check_is_shown_when_there_is_one(directory, written, tmp_path):
    shutil.copytree(directory.path, tmp_path / "copy", ignore=shutil.ignore_patterns("runs"))
    folder = tmp_path / "copy" / "coordcheck"
    folder.mkdir()
    slope = {
        "axis": "width", "module": "router", "check": "init", "slope": -0.48, "standard_error": 0.01, "seeds": 2,
        "low": -0.5, "high": -0.5, "tolerance": 0.2, "verdict": "PASS",
    }  # fmt: skip
    record = {"key": "0", "study": "synthetic", "rules": "expertp", "steps": 60, "verdict": "PASS"}
    record |= {"diverged": [], "slopes": [slope]}
    (folder / "coordcheck.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "coordcheck.svg").write_text(
        (written.path.parent / "figures/drift.svg").read_text(encoding="utf-8"), encoding="utf-8"
    )
    page = render_report(read_study(tmp_path / "copy")).read_text(encoding="utf-8")
    section = page[page.index('<section id="coordcheck"') : page.index('<section id="scaling"')]
    assert "−0.48 ± 0.01 (−0.5)" in section
    assert "n = 2 seeds per size; 1 slope: 1 within tolerance, 0 outside; 0 diverged" in section
    assert 'class="missing"' not in section
    (folder / "coordcheck.svg").unlink()
    os.mkfifo(folder / "coordcheck.svg")
    with pytest.raises(InputError, match=r"coordcheck\.svg: damaged \(not a regular file\); delete coordcheck and"):
        render_report(read_study(tmp_path / "copy"))
    (folder / "coordcheck.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"coordcheck\.json: damaged .*`expertp coordcheck`"):
        render_report(read_study(tmp_path / "copy"))


def test_records_are_read_once_and_only_of_runs_whose_curves_are_used(directory, monkeypatch):
    from expertp.training.store import RunDirectory

    opened = []
    original = RunDirectory.metrics
    monkeypatch.setattr(RunDirectory, "metrics", lambda self: opened.append(self.path) or original(self))
    table = read(directory).table
    of_base = table.where(size=table.base("width"), arm=table.own, hp="log2_lr")
    horizon = {directory.place(row.result.identity) for row in of_base if row.result.status in DONE}
    assert sorted(opened) == sorted(horizon)
    first, again = (table.zero_shot_records("width", table.base("width"), table.own) for _ in range(2))
    assert sorted(first) == [0, 1, 2]
    assert all(again[seed] is first[seed] for seed in first)
    assert len(opened) == len(horizon), "zero-shot runs of the base are among them"
    balance.data(table)
    for arm in table.arms:
        collapse.data(table, arm)
    zero_shot = {directory.place(row.result.identity) for row in table.where(hp=None) if row.result.status in DONE}
    assert sorted(opened) == sorted(horizon | zero_shot)


@pytest.mark.parametrize(
    ("value", "ends", "text"),
    [
        (0.123, (0.1, 0.2), "+0.12 [+0.10, +0.20]"),
        (-1.0, (float("-inf"), -0.5), "−1.00 [−∞, −0.50]"),
        (1.0, (float("nan"), float("nan")), "+1.00 [?, ?]"),
        (float("nan"), (0.0, 0.0), "–"),
    ],
)
def test_an_interval_says_where_it_is_open(value, ends, text):
    assert interval(Estimate(value, *ends), "+.2f") == text


def test_a_reason_becomes_a_sentence():
    assert sentence("moves by -0.5 (95%: -inf to inf)") == "Moves by −0.5 (95%: −∞ to ∞)."
    assert sentence("moves by -0.00 (95%: -0.05 to +0.02)") == "Moves by +0.00 (95%: −0.05 to +0.02)."


def test_captions_say_how_many_seeds_a_refined_axis_has(tmp_path):
    more = {"axis": "width", "hp": "log2_lr", "seeds": [7, 8]}
    study = study_spec(write_tokens(tmp_path / "tokens"), refinements=[more])
    table = open_study(tmp_path / "study", study).table()
    refined, plain = (
        table.where(axis=axis, size=table.sizes(axis)[1], arm=table.own, hp="log2_lr") for axis in ("width", "experts")
    )
    assert seeds_and_counts(refined, "point").startswith("n = 5 seeds per point; 35 runs: ")
    assert seeds_and_counts([*plain, *refined], "size").startswith("n = 3 to 5 seeds per size; 56 runs: ")


def test_a_solved_theory_is_part_of_the_page(directory, tmp_path):
    from expertp.cli.main import main

    copy = tmp_path / "study"
    shutil.copytree(directory.path, copy)
    sizes = "networks.sizes=[{N: 8, E: 4, n_hid: 4}, {N: 16, E: 4, n_hid: 4}]"
    small = ["P=3", "D=4", "T=4", "solver.replicates=2", "solver.nodes=4", "solver.neurons=8", "networks.seeds=2"]
    assert main(["theory", "compare", *small, sizes, "--out", str(copy / "theory")]) == 0
    page = render_report(read_study(copy)).read_text(encoding="utf-8")
    section = page[page.index('id="theory"') : page.index('id="plan"')]
    assert section.count("<svg") == 4
    assert re.search(r"n = 2 networks \w+ size, 2 sizes", section)
    assert "Monte-Carlo error" in section
    assert "N 16, E 4, n_hid 4" in section
    Tree(page)


def test_one_thing_is_not_several(tmp_path):
    spec = study_spec(
        write_tokens(tmp_path / "tokens"),
        axes={"width": [64]},
        grids={"log2_lr": [-7]},
        seeds=[0],
        arms={},
        verdict=None,
    )
    directory = write_study(tmp_path / "study", spec, skip=lambda run: run.model.n_embd == 64)
    page = render_report(directory).read_text(encoding="utf-8")
    text = re.sub(r"<(script|style)>.*?</\1>|<pre.*?</pre>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert re.findall(r"\b1 (?:runs|seeds|sizes|slopes|networks|learning rates|steps)\b", text) == []
    for words in ("1 learning rate are", "with 1 seed to", "1 of 2 runs has not ended", "n = 1 seed per"):
        assert words.replace(" are", "") in text
