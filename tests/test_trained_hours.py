"""benchmarks/trained_hours.py: hours of training, and those of full grids."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.trained_hours import BLOCK, full_grid, hours, hours_table, mean_seconds, seconds_by_run, seconds_of
from expertp.paper.profile import load_profile
from expertp.study.spec import ChoiceSpec
from scripts.docs_tables import fill_blocks

PAGE = Path(__file__).parents[1] / "docs/paper.md"
NAME = "softmax"
CHOICES = (
    ChoiceSpec(axis="width", hp="log2_lr", values=(-7, -6.5, -6), seeds=(0, 1)),
    ChoiceSpec(axis="experts", hp="log2_lr", values=(-7, -6.5, -6), seeds=(0, 1, 2, 3)),
)


@pytest.fixture
def profile():
    return load_profile("cpu")


def row(identity, seconds, n_embd=64, n_exp=8, arm="expertp", status="finished"):
    model = {"n_embd": n_embd, "n_layer": 2, "n_exp": n_exp, "n_act": n_exp // 4, "alpha_ffn": 1.0}
    fields = {"identity": identity, "arm": arm, "status": status, "step": 300, "seconds": seconds}
    return {name: str(value) for name, value in {**fields, **model}.items()}


def test_a_run_that_tables_share_counts_once():
    rows = [row("a", 10), row("b", 20), row("a", 10), row("c", "", status="failed")]
    assert seconds_of(rows) == 30
    assert list(mean_seconds([*rows, row("d", 1, status="stopped")]).values()) == [15]


def test_a_full_grid_has_all_values_and_sizes_and_the_chosen_seeds_of_each_curve(profile):
    runs = full_grid(profile.study(NAME, "tokens"), CHOICES)
    counts = Counter((run.model.n_embd, run.model.n_exp) for run in runs)
    assert counts == {(64, 8): 28, (256, 8): 14, (64, 32): 28}, "seven values; the base has the seeds of both curves"


def test_a_model_without_runs_takes_time_by_its_flops(profile):
    runs = full_grid(profile.study(NAME, "tokens"), CHOICES)
    seconds = seconds_by_run(runs, mean_seconds([row("a", 10), row("b", 30, n_exp=32)]))
    assert {seconds[run] for run in runs if run.model.n_exp == 8 and run.model.n_embd == 64} == {10}
    assert {seconds[run] for run in runs if run.model.n_exp == 32} == {30}
    assert {seconds[run] > 10 for run in runs if run.model.n_embd == 256} == {True}


def test_studies_are_summed_with_shared_runs_counted_once(profile, tmp_path):
    (tmp_path / f"{NAME}-chosen.yaml").write_text(
        "chosen: [{axis: width, hp: log2_lr, values: [-7, -6.5, -6], seeds: [0, 1]}]\nstopped: {}\n"
    )
    tables = {
        NAME: [row("a", 3600), row("b", 7200, n_embd=256), row("c", 3600, arm="sp")],
        "zero-shot": [row("a", 3600)],
    }
    adaptive, other, total, everything = hours(tables, profile, tmp_path)
    assert (adaptive.study, adaptive.runs, adaptive.seconds) == (NAME, 3, 14400)
    assert (adaptive.full_runs, adaptive.full_seconds) == (29, 14 * 3600 + 14 * 7200 + 3600)
    assert (other.runs, other.seconds, other.full_seconds) == (1, 3600, None)
    assert (total.seconds, total.full_seconds) == (14400, adaptive.full_seconds)
    assert (everything.runs, everything.seconds) == (3, 14400)


def test_the_page_has_the_hours_of_the_published_tables():
    text = PAGE.read_text(encoding="utf-8")
    why = "out of date; run python benchmarks/trained_hours.py --fill docs/paper.md"
    assert text == fill_blocks(text, {BLOCK: hours_table}), why
