"""Generated blocks of pages are up to date, and say what the code says."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks import performance
from expertp.adapters.families import FAMILIES
from expertp.analysis.paired import paired
from expertp.cli.main import build_parser
from expertp.errors import InputError, how_to_install
from expertp.rules import RULE_SETS
from expertp.spec import BaseHPs, ModelSpec
from scripts.docs_tables import BLOCKS, fill_blocks, markdown_table

ROOT = Path(__file__).parents[1]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.exists()]
RULES_PAGE = (ROOT / "docs/rules.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_generated_blocks_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    place = page.relative_to(ROOT)
    assert text == fill_blocks(text), f"{place} is out of date; run python scripts/docs_tables.py {place}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_marker_has_its_counterpart(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    markers = re.findall(r"^<!-- ([a-z-]+):(begin|end) -->$", text, re.MULTILINE)
    names = [name for name, _ in markers[::2]]
    assert markers == [(name, which) for name in names for which in ("begin", "end")]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_on_a_page(block: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert f"<!-- {block}:begin -->\n{BLOCKS[block]()}\n<!-- {block}:end -->" in pages


@pytest.mark.parametrize(
    "line",
    [
        "| `expert_down` | `sigma m_N^-1/2 m_a^-1` | `eta m_N^-1 m_a^-1` | `lambda m_N m_a` "
        "| `eps m_N^-1 m_L^-1 m_E^-1` | `eps m_N^-1 m_L^-1 m_a^-2` | Tab. 1-2, Rule 3 |",
        "| `router` | `sigma m_N^-gamma` | `eta m_N^-1` | `lambda m_N` "
        "| `eps m_L^-1 m_E^-1` | `eps m_N^-1 m_L^-1` | Tab. 1-2, Rule 1 |",
        "| `final_norm` | gain 1, bias 0 | `eta` | none | `eps m_N^-1` | `eps` | Tab. 2, App. A |",
        "| `expert_bias` | 0 | `eta_bias` | none | not in Adam | not in Adam | Tab. 1-2, Rule 2, App. B |",
        "| `expert_down`, `ffn_down` | `sigma m_N^-1/2 m_a^-1/2` | · | · | · | · |",
    ],
)
def test_a_row_reads_like_the_rule(line: str) -> None:
    assert line in RULES_PAGE.splitlines()


def test_every_rule_set_and_option_is_on_the_page() -> None:
    assert all(f"`rules: {name}`" in RULES_PAGE for name in RULE_SETS if name != "expertp")
    for spec in (BaseHPs, ModelSpec):
        for name, field in spec.model_fields.items():
            assert re.search(rf"^\| `{name}` \|.*{re.escape(field.description or '?')} \|$", RULES_PAGE, re.MULTILINE)


def test_a_block_that_is_out_of_date_is_rewritten_and_the_rest_kept() -> None:
    page = "before\n<!-- rules:begin -->\nold\n<!-- rules:end -->\nafter <!-- rules:begin -->\n"
    filled = fill_blocks(page)
    assert filled != page
    assert filled == fill_blocks(filled)
    assert filled.startswith("before\n<!-- rules:begin -->\n| group |")
    assert filled.endswith("\n<!-- rules:end -->\nafter <!-- rules:begin -->\n")


def test_an_unknown_block_is_refused() -> None:
    with pytest.raises(InputError, match="unknown block 'rulez'"):
        fill_blocks("<!-- rulez:begin -->\n<!-- rulez:end -->\n")


def test_measured_tables_hold_the_stored_numbers() -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    blocks = performance.tables(json.loads((ROOT / "docs/results/performance.json").read_text(encoding="utf-8")))
    assert page == fill_blocks(page, blocks)
    assert page.count(":begin -->") == len(blocks)
    assert page == fill_blocks(page)  # the generator of other blocks leaves them alone


def test_a_bar_in_a_cell_does_not_end_the_cell() -> None:
    assert markdown_table(["a"], [["x|y"]]).splitlines()[-1] == r"| x\|y |"


def test_the_python_of_the_readme_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 1
    done = subprocess.run([sys.executable, "-c", blocks[0]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Group(init_std=0.008")


def test_the_readme_has_the_number_of_families() -> None:
    assert f"{len(FAMILIES)} families of Hugging Face" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_that_installs_an_extra_is_the_one_that_the_program_prints() -> None:
    command, where, place = how_to_install("hf").partition(" in the ")
    assert f"`{command}`{where}{place}" in (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")


def test_the_page_of_the_planner_says_what_can_be_copied_while_there_are_mistakes() -> None:
    script = (ROOT / "src/expertp/report/planner.js").read_text(encoding="utf-8")
    assert 'button.disabled = count > 0 && button.dataset.copy !== "as-link"' in script
    page = " ".join((ROOT / "docs/planner.md").read_text(encoding="utf-8").split())
    assert "While there are mistakes, only the link can be copied." in page


def test_the_commands_of_the_pages_name_verbs_and_flags_that_exist() -> None:
    for page in PAGES:
        for line in re.findall(r"^expertp (\w+)(.*)$", page.read_text(encoding="utf-8"), re.M):
            verb, rest = line
            parser = build_parser(verb)
            flags = {flag for action in parser._actions for flag in action.option_strings}
            assert set(re.findall(r"(--[\w-]+)", re.sub(r"'.*?'", "", rest.partition("#")[0]))) <= flags, (
                f"{page.name}: expertp {verb}{rest}"
            )


def test_the_verdicts_of_the_novels_are_those_of_the_study() -> None:
    page = (ROOT / "docs/results/novels.md").read_text(encoding="utf-8")
    axes = json.loads((ROOT / "docs/results/novels/verdict.json").read_text(encoding="utf-8"))["axes"]
    assert len(axes) == 6
    for each in axes:
        drift = "{:+.2f} [{:+.2f}, {:+.2f}]".format(each["drift_octaves_per_doubling"], *each["ci"])
        excess = "{:.4f} [{:.4f}, {:.4f}]".format(each["excess"], *each["excess_ci"])
        assert f"| {each['verdict']} | {drift} | {excess} |" in page, each["axis"]


def test_the_larger_constants_of_the_demo_are_those_of_its_runs() -> None:
    page = (ROOT / "docs/results/demo.md").read_text(encoding="utf-8")
    losses: dict[tuple[str, str], list[float]] = {}
    with (ROOT / "docs/results/demo/constants.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            losses.setdefault((row["alpha_ffn"], row["rules"]), []).append(float(row["val_loss"]))
    for size, alpha in (("base", "1.0"), ("expert size 4x", "4.0")):
        ours, theirs = (fmean(losses[alpha, rules]) for rules in ("expertp", "sp"))
        assert f"| {size} | {ours:.3f} | {theirs:.3f} |" in page


def test_the_losses_at_four_times_the_width_are_those_of_the_runs() -> None:
    page = (ROOT / "docs/results/constants.md").read_text(encoding="utf-8")
    losses: dict[tuple[str, str, float, float], dict[str, float]] = {}
    loads: dict[tuple[str, str, float, float], list[float]] = {}
    with (ROOT / "docs/results/constants/width.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            place = (row["n_embd"], row["contrast"], float(row["log2_lr"]), float(row["log2_init_std"]))
            losses.setdefault(place, {})[row["seed"]] = float(row["val_loss"])
            loads.setdefault(place, []).append(float(row["max_load_deviation"]))

    def beside(place: tuple[str, str, float, float], ours: tuple[str, str, float, float]) -> str:
        seeds = sorted(losses[ours])
        return str(paired([losses[place][seed] for seed in seeds], [losses[ours][seed] for seed in seeds]))

    ours = ("384", "", -8.0, -4.0)
    shown = [("", -9.0, -4.0), ("", -7.0, -4.0), ("paper", -7.0, -4.0), ("all ones", -8.0, -4.0)]
    for contrast, lr, init in [*shown, ("sp", -9.0, -4.0), ("sp", -9.0, -5.0)]:
        place = ("384", contrast, lr, init)
        assert f"| {fmean(losses[place].values()):.4f} | {beside(place, ours)} |" in page, place
    assert f"zero-shot | {fmean(losses[ours].values()):.4f} |" in page
    best = min((fmean(found.values()), place) for place, found in losses.items() if place[:2] == ("384", "sp"))
    assert best[1] == ("384", "sp", -9.0, -4.0)
    difference = beside(("96", "paper", -7.0, -4.0), ("96", "", -8.0, -4.0))
    assert f"are {difference.removeprefix('+')} above" in page
    assert f"({fmean(losses['96', 'sp', -9.0, -4.0].values()):.4f} at 96" in page
    wide, narrow, tuned = (f"{fmean(loads[place]):.2f}" for place in (best[1], ("96", "sp", -9.0, -4.0), ours))
    assert f"{wide}, of 0.75 at most; {narrow} at 96 channels, {tuned} for the tuned" in page


def test_the_numbers_of_the_promise_are_those_of_its_study() -> None:
    page = (ROOT / "docs/results/promise.md").read_text(encoding="utf-8")
    with (ROOT / "docs/results/promise/arm-sp.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        columns = ("expertp median", "sp zero-shot median", "sp re-tuned median")
        losses = " | ".join(f"{float(row[column]):.3f}" for column in columns)
        assert f"| {row['size']} | {losses} | {float(row['zero-shot gap mean']):+.3f} |" in page
    losses_by_place: dict[tuple[str, str, str], list[float]] = {}
    with (ROOT / "docs/results/promise/results.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            place = (row["arm"], row["n_embd"], row["log2_lr"])
            losses_by_place.setdefault(place, []).append(float(row["val_loss"]))
    sp = {lr: fmean(losses) for (arm, width, lr), losses in losses_by_place.items() if (arm, width) == ("sp", "384")}
    cost = sp["-8.0"] - min(sp.values())
    assert f"it costs {cost:.2f} nats" in page
    found = re.search(r"costs ([0-9.]+) nats at 4 times the width \(95%: ([0-9.]+) to ([0-9.]+)\)", page)
    assert found is not None
    shown = "about {:.3f} nats at 4 times the width (95%: {:.3f} to {:.3f})".format(*map(float, found.groups()))
    assert shown in (ROOT / "README.md").read_text(encoding="utf-8")
