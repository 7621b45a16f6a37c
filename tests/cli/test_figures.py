import csv
import json

import pytest

from expertp.cli.main import main
from expertp.paper.catalogue import FINDINGS
from expertp.paper.profile import load_profile

TINY = {"n_embd": 16, "n_layer": 1, "d_head": 8, "vocab_size": 257, "context": 16}
NO_TRAINING = ("bias-shift", "soft-router")


def tiny(profile):
    """Return a profile whose studies have the same shape and next to no size: a few steps of tiny models."""
    studies = {}
    for name, tree in profile.studies.items():
        study = profile.study(name, "data")
        small = {field: _scaled(field, getattr(study.base, field)) for field in ("n_embd", "n_layer")}
        base = {**tree.get("base", {}), **small}
        axes = {
            axis: {"sizes": _sizes(axis, spec.sizes), "sweep": list(spec.sweep)} for axis, spec in study.axes.items()
        }
        joint = {
            key: {
                "models": [{field: _scaled(field, value) for field, value in model.items()} for model in spec.models],
                "sweep": list(spec.sweep),
            }
            for key, spec in study.joint.items()
        }
        contrasts = {
            key: {
                "axes": list(each.axes),
                "retune": {axis: _sizes(axis, sizes) for axis, sizes in each.retune.items()},
                "hps": each.hps,
            }
            for key, each in study.contrasts.items()
        }
        studies[name] = {
            **tree,
            "base": base,
            "axes": axes,
            "joint": joint,
            "contrasts": contrasts,
            "train": {"schedule": study.train.schedule, "eval_every": 1 if study.train.eval_every < 300 else 6},
            "grids": {hp: values and list(values[:3]) for hp, values in study.grids.model_dump().items()},
            "seeds": [0, 1],
        }
    common = {
        **profile.common,
        "base": {**profile.common["base"], **TINY},
        "train": {"steps": 6, "batch_tokens": 64, "warmup_steps": 2, "eval_every": 6, "eval_tokens": 128},
    }
    corpora = {name: corpus.replace(tokenizer="bytes", vocab_size=None) for name, corpus in profile.corpora.items()}
    return profile.replace(common=common, studies=studies, corpora=corpora)


def _scaled(field, value):
    return {"n_embd": lambda n: round(n / 6 / 8) * 8, "n_layer": lambda n: max(1, n // 2)}.get(field, lambda n: n)(
        value
    )


def _sizes(axis, sizes):
    field = {"width": "n_embd", "depth": "n_layer"}.get(axis, axis)
    return [_scaled(field, int(size) if float(size).is_integer() else size) for size in sizes]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("figures")


@pytest.fixture
def tiny_profile(monkeypatch):
    profile = tiny(load_profile("cpu"))
    monkeypatch.setattr("expertp.paper.profile.load_profile", lambda _: profile)
    monkeypatch.delenv("EXPERTP_CORPORA", raising=False)
    return profile


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FINDINGS if name not in NO_TRAINING])
def test_every_figure_is_made_from_its_studies(name, out, tiny_profile, capsys):
    assert main(["figures", name, "--out", str(out), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["verdict"] in ("HOLDS", "DOES NOT HOLD AT THIS SCALE", "INCONCLUSIVE")
    assert record["number"]
    folder = out / "findings" / name
    for picture in record["pictures"]:
        assert {f"{picture}.{kind}" for kind in ("svg", "png", "csv")} <= {path.name for path in folder.iterdir()}


def test_a_figure_is_made_resumed_and_published(out, tiny_profile, tmp_path, capsys):
    command = ["figures", "fan-in-down", "--out", str(tmp_path / "own"), "--workers", "1"]
    assert main([*command, "--dry-run"]) == 0
    assert "is known once the text is prepared" in capsys.readouterr().out
    command[3] = str(out)
    assert main(command) == 0
    said = capsys.readouterr()
    assert "fan-in-down (Fig. 11" in said.out
    assert "by the rule" in said.out
    assert "EXPERTP_CORPORA is not set; the built-in corpus takes its place" in said.err
    assert main([*command, "--dry-run"]) == 0
    assert "all runs are there; nothing would be trained" in capsys.readouterr().out
    cells = {path: path.stat().st_mtime_ns for path in (out / "cells").glob("*/summary.json")}
    assert len(cells) >= 12
    assert main(command) == 0
    assert "24 runs, " in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in cells} == cells

    docs = tmp_path / "docs"
    assert main(["figures", "page", "--out", str(out), "--to", str(docs)]) == 0
    assert "## fan-in-down" in (docs / "README.md").read_text()
    assert not list(docs.rglob("*.png"))
    with (docs / "cells" / "fan-in-down.csv").open() as file:
        assert {row["status"] for row in csv.DictReader(file)} == {"finished"}

    again = tmp_path / "again"
    assert main(["figures", "fan-in-down", "--out", str(again), "--cells", str(docs / "cells"), "--workers", "1"]) == 0
    said = capsys.readouterr()
    assert "24 finished runs taken from" in said.err
    assert "to train" not in said.err
    both = [json.loads((each / "findings" / "fan-in-down" / "finding.json").read_text()) for each in (out, again)]
    assert both[0]["verdict"] == both[1]["verdict"]
    assert both[0]["number"] == both[1]["number"]


def test_figures_that_need_no_training(tmp_path, capsys):
    assert main(["figures", "bias-shift", "--out", str(tmp_path)]) == 0
    assert "bias-shift (Fig. 6, appendix B): HOLDS" in capsys.readouterr().out
    assert (tmp_path / "findings" / "bias-shift" / "bias-shift.png").exists()


def test_the_list_has_all(capsys):
    assert main(["figures", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in FINDINGS)
    assert main(["figures", "list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(FINDINGS)


def test_a_dry_run_tells_runs_and_hours(capsys):
    assert main(["figures", "joint-scale", "--profile", "paper", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "2.54B" in said
    assert "944M" in said
    assert "H100-hours" in said
    assert "assumed, since the paper does not print it:\n  hps.lr" in said
    assert main(["figures", "all", "--profile", "paper", "--dry-run", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["figures"]) == 19
    assert {"total_parameters", "active_parameters", "tokens", "flops"} <= set(record["runs"][0])
    assert record["h100_hours"] > 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["figures", "transfer"], "no figure 'transfer'; did you mean"),
        (["figures", "softmax", "--profile", "gpu"], "no profile 'gpu'"),
        (["figures", "softmax", "--to", "x"], "--to belongs to `expertp figures page`, not to softmax"),
        (["figures", "softmax", "--workers", "0"], "--workers: 0 is not a whole number from 1 on"),
        (["figures", "softmax", "--cells", "nowhere"], "--cells nowhere: no such directory"),
        (["figures", "page", "--out", "nowhere"], "nowhere: no findings here"),
    ],
)
def test_bad_input_is_one_line(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
