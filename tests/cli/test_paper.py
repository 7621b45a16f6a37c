import csv
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import expertp
from expertp.cli.main import main
from expertp.paper import profile as profiles
from expertp.paper.catalogue import FINDINGS, STUDIES
from expertp.paper.cost import runs_by_finding
from expertp.paper.finding import PaperStudy
from expertp.paper.listing import PROFILES, Listed, listed_findings
from expertp.paper.profile import load_profile
from expertp.paper.store import training_seconds
from expertp.search import design
from expertp.study.store import read_study

pytestmark = pytest.mark.usefixtures("in_process")

TINY = {"n_embd": 16, "n_layer": 1, "d_head": 8, "vocab_size": 257, "context": 16}
NAMES = [finding.name for finding in FINDINGS]
NO_TRAINING = ("bias-shift", "soft-router")


def tiny_studies(profile):
    """Return studies of the same shape and next to no size: a few steps of tiny models."""
    studies = {}
    for name, own in STUDIES.items():
        study = profile.study(name, "data")
        small = {field: _scaled(field, getattr(study.base, field)) for field in ("n_embd", "n_layer")}
        axes = {
            axis: {
                "sizes": _sizes(axis, spec.sizes),
                "sweep": list(spec.sweep),
                "sweep_at": spec.sweep_at and _sizes(axis, spec.sweep_at),
            }
            for axis, spec in study.axes.items()
        }
        joint = {
            key: {
                "models": [{field: _scaled(field, value) for field, value in model.items()} for model in spec.models],
                "sweep": list(spec.sweep),
                "sweep_at": spec.sweep_at,
            }
            for key, spec in study.joint.items()
        }
        arms = {
            key: {
                "axes": list(each.axes),
                "retune": {axis: _sizes(axis, sizes) for axis, sizes in each.retune.items()},
                "hps": each.hps,
                "control": list(each.control),
            }
            for key, each in study.arms.items()
        }
        base = {**own.both.get("base", {}), **own.cpu.get("base", {}), **small}
        changes = {
            "base": base,
            "axes": axes,
            "joint": joint,
            "arms": arms,
            "train": {"schedule": study.train.schedule, "eval_every": 1 if study.train.eval_every < 500 else 6},
            "grids": {hp: values and list(values[:5]) for hp, values in study.grids.model_dump().items()},
            "seeds": [0, 1],
        }
        studies[name] = PaperStudy(name, cpu={**own.cpu, **changes}, paper={}, both=own.both)
    return studies


def _scaled(field, value):
    return {"n_embd": lambda n: n // 8, "n_layer": lambda n: max(1, n // 2)}.get(field, lambda n: n)(value)


def _sizes(axis, sizes):
    field = {"width": "n_embd", "depth": "n_layer"}.get(axis, axis)
    return [_scaled(field, int(size) if float(size).is_integer() else size) for size in sizes]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


@pytest.fixture
def tiny_profile(monkeypatch):
    profile = load_profile("cpu")
    common = {
        **profile.common,
        "base": {**profile.common["base"], **TINY},
        "train": {"steps": 6, "batch_tokens": 64, "warmup_steps": 2, "eval_every": 6, "eval_tokens": 128},
    }
    corpora = {name: corpus.replace(tokenizer="bytes", vocab_size=None) for name, corpus in profile.corpora.items()}
    tiny = profile.replace(common=common, corpora=corpora)
    monkeypatch.setattr("expertp.paper.profile.STUDIES", tiny_studies(profile))
    monkeypatch.setattr("expertp.paper.profile.load_profile", lambda _: tiny)
    monkeypatch.delenv("EXPERTP_CORPORA", raising=False)
    return tiny


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_TRAINING])
def test_every_finding_is_made_from_its_studies(name, out, tiny_profile, capsys):
    assert main(["paper", "make", name, "--out", str(out), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert {record["verdict"], record["verdict_by_paper"]} <= {"HOLDS", "DOES NOT HOLD AT THIS SCALE", "INCONCLUSIVE"}
    assert record["number"]
    folder = out / "findings" / name
    for picture in record["pictures"]:
        assert {f"{picture}.{kind}" for kind in ("svg", "png", "csv")} <= {path.name for path in folder.iterdir()}


@pytest.mark.heavy
def test_a_finding_is_made_resumed_and_published(out, tiny_profile, tmp_path, capsys):
    command = ["paper", "make", "fan-in-down", "--out", str(tmp_path / "own"), "--workers", "1"]
    assert main([*command, "--dry-run"]) == 0
    assert "is known once the text is prepared" in capsys.readouterr().out
    command[4] = str(out)
    assert main(command) == 0
    said = capsys.readouterr()
    assert "fan-in-down (Fig. 11" in said.out
    assert "by the paper's criterion: " in said.out
    assert "with the rule" in said.out
    assert "EXPERTP_CORPORA is not set; the built-in corpus is used instead" in said.err
    assert main([*command, "--dry-run"]) == 0
    assert "all runs are finished; nothing would be trained" in capsys.readouterr().out
    runs = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/summary.json")}
    assert len(runs) >= 12
    assert main(command) == 0
    assert "24 runs, " in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in runs} == runs

    docs = tmp_path / "docs"
    assert main(["paper", "page", "--out", str(out), "--to", str(docs)]) == 0
    assert "## fan-in-down" in (docs / "README.md").read_text()
    assert not list(docs.rglob("*.png"))
    with (docs / "results" / "fan-in-down.csv").open() as file:
        assert {row["status"] for row in csv.DictReader(file)} == {"finished"}

    again = tmp_path / "again"
    command = ["paper", "make", "fan-in-down", "--out", str(again), "--results", str(docs / "results")]
    assert main([*command, "--workers", "1"]) == 0
    said = capsys.readouterr()
    assert "24 finished runs taken from" in said.err
    assert "to train" not in said.err
    both = [json.loads((each / "findings" / "fan-in-down" / "finding.json").read_text()) for each in (out, again)]
    assert both[0]["verdict"] == both[1]["verdict"]
    assert both[0]["number"] == both[1]["number"]


@pytest.mark.heavy
def test_an_adaptive_study_of_a_finding_keeps_its_cells(tiny_profile, tmp_path, monkeypatch, capsys):
    name = "joint-scale"
    adaptive = replace(profiles.STUDIES[name], is_adaptive=True)
    monkeypatch.setattr("expertp.paper.profile.STUDIES", {name: adaptive})
    monkeypatch.setattr("expertp.paper.profile.load_profile", lambda _: tiny_profile.replace(minutes=0.001))
    command = ["paper", "make", name, "--out", str(tmp_path / "out"), "--workers", "1", "--json"]
    assert main(command) == 0
    chosen = tmp_path / "docs/results" / f"{name}-chosen.yaml"
    assert main(["paper", "page", "--out", str(tmp_path / "out"), "--to", str(tmp_path / "docs")]) == 0
    assert "axis: together" in chosen.read_text()


@pytest.mark.heavy
def test_an_adaptive_study_has_its_time_once_however_often_it_is_made(tiny_profile, tmp_path, monkeypatch):
    name, budgets, decide = "joint-scale", [], design.sweep_until_decided
    monkeypatch.setattr("expertp.paper.profile.STUDIES", {name: replace(profiles.STUDIES[name], is_adaptive=True)})
    monkeypatch.setattr("expertp.paper.profile.load_profile", lambda _: tiny_profile.replace(minutes=0.2))
    monkeypatch.setattr(design, "sweep_until_decided", lambda *given: budgets.append(given[2]) or decide(*given))
    command = ["paper", "make", name, "--out", str(tmp_path / "out"), "--workers", "1", "--json"]
    assert main(command) == 0
    spent = training_seconds(read_study(tmp_path / "out" / "studies" / name))
    assert main(command) == 0
    assert spent > 0
    assert budgets == [12, 12 - spent]


@pytest.mark.heavy
def test_a_finding_that_needs_no_training(tmp_path, capsys):
    assert main(["paper", "make", "bias-shift", "--out", str(tmp_path)]) == 0
    assert "bias-shift (Fig. 6, appendix B): HOLDS" in capsys.readouterr().out
    assert (tmp_path / "findings" / "bias-shift" / "bias-shift.png").exists()


@pytest.mark.heavy
def test_a_directory_of_an_earlier_version_keeps_its_runs(out, tiny_profile, tmp_path, capsys):
    assert main(["paper", "make", "fan-in-down", "--out", str(out), "--workers", "1"]) == 0
    old = shutil.copytree(out, tmp_path / "old")
    (old / "runs").rename(old / "cells")
    study = old / "studies" / "fan-in-down" / "study.json"
    record = json.loads(study.read_text())
    assert record.pop("runs") == "../../runs"
    study.write_text(json.dumps({**record, "cells": "../../cells"}))  # as earlier versions wrote it
    capsys.readouterr()
    assert main(["paper", "make", "fan-in-down", "--out", str(old), "--dry-run"]) == 0
    assert "nothing would be trained" in capsys.readouterr().out
    assert main(["paper", "make", "fan-in-down", "--out", str(old), "--workers", "1"]) == 0
    assert "to train" not in capsys.readouterr().err
    assert not (old / "runs").exists()


@pytest.mark.heavy
def test_the_list_has_all(capsys):
    assert main(["paper", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES)
    assert main(["paper", "list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == NAMES


@pytest.mark.heavy
def test_the_list_is_that_of_the_catalogue(capsys, request):
    runs = {name: runs_by_finding(load_profile(name), FINDINGS) for name in PROFILES}
    expected = [
        Listed(
            each.name,
            each.where,
            each.claim,
            {name: len(runs[name][each.name]) for name in PROFILES},
            {name: any(load_profile(name).is_adaptive(study.name) for study in each.studies) for name in PROFILES},
        )
        for each in FINDINGS
    ]
    if request.config.getoption("--update-golden"):
        path = Path(expertp.__file__).parent / "configs/paper/findings.json"
        path.write_text(json.dumps([asdict(each) for each in expected], indent=1) + "\n")
    assert listed_findings() == expected, f"if the change is intended, run pytest {request.node.nodeid} --update-golden"
    assert main(["paper", "list", "--json", "--profile", "paper"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["runs"] for each in printed] == [each.runs["paper"] for each in expected]
    assert not any(each["is_adaptive"] for each in printed)


@pytest.mark.heavy
def test_the_runs_of_an_adaptive_study_are_the_fewest(capsys):
    assert main(["paper", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " at least " in lines["transfer-quarter"]
    assert " at least " not in lines["fixed-topk"]
    assert main(["paper", "make", "softmax", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("softmax, profile cpu: at least ")
    assert "adaptive studies add runs until their verdicts are decided, for at most 100 minutes each" in said
    assert "in all at least " in said
    assert main(["paper", "make", "fixed-topk", "--dry-run"]) == 0
    assert "at least" not in capsys.readouterr().out


@pytest.mark.heavy
def test_the_list_imports_neither_numpy_nor_how_findings_are_judged():
    slow = ("torch", "matplotlib", "scipy", "numpy", "jaxtyping", "expertp.paper.catalogue")
    program = (
        "import sys; from expertp.cli.main import main; main(['paper', 'list']); "
        f"print([name for name in {slow} if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "[]"


@pytest.mark.heavy
def test_a_dry_run_prints_runs_and_hours(capsys):
    assert main(["paper", "make", "joint-scale", "--profile", "paper", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "2.54B" in said
    assert "944M" in said
    assert "H100-hours" in said
    assert "assumed, since the paper does not print it:\n  hps.lr" in said
    assert main(["paper", "all", "--profile", "paper", "--dry-run", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["findings"]) == 19
    assert {"total_parameters", "active_parameters", "tokens", "flops"} <= set(record["runs"][0])
    assert record["h100_hours"] > 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make", "transfer"], "no finding 'transfer'; did you mean"),
        (["make"], "make needs the NAME of a finding"),
        (["all", "softmax"], "all takes no NAME, but 'softmax' was given"),
        (["softmax"], "no action 'softmax'; `expertp paper make softmax` makes it"),
        (["lst"], "no action 'lst'; did you mean 'list'"),
        (["make", "softmax", "--profile", "gpu"], "no profile 'gpu'"),
        (["make", "softmax", "--to", "x"], "--to belongs to `expertp paper page`, not to make"),
        (["make", "softmax", "--workers", "0"], "--workers: 0 is not a positive integer"),
        (["make", "softmax", "--results", "nowhere"], "--results nowhere: no such directory"),
        (["page", "--out", "nowhere"], "nowhere: no findings here"),
    ],
)
def test_bad_input_is_one_line(arguments, said, capsys):
    assert main(["paper", *arguments]) == 2
    assert said in capsys.readouterr().err
