import csv
import json
import math

import pytest

from expertp.cli import theory
from expertp.cli.main import main

TINY = ["P=3", "D=4", "T=4", "solver.replicates=2", "solver.nodes=4", "solver.neurons=8"]
SIZES = "networks.sizes=[{N: 8, E: 4, n_hid: 4}, {N: 16, E: 4, n_hid: 4}]"


def test_solve_prints_loss_outputs_and_error(capsys):
    assert main(["theory", "solve", *TINY, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["loss"]) == 4
    assert [len(row) for row in found["f"]] == [4, 4, 4]
    assert 0 < found["mc_error"] < 0.5
    assert found["loss"][0] > found["loss"][-1]
    assert main(["theory", "solve", *TINY]) == 0
    assert "Monte-Carlo error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "form"), [((), "reduced"), (("alpha_star=0.5",), "kernel"), (("solver.form=kernel",), "kernel")]
)
def test_the_form_follows_the_problem(more, form, capsys):
    assert main(["theory", "solve", *TINY, *more]) == 0
    assert f"{form} form" in capsys.readouterr().out


def test_a_problem_file_and_overrides_make_the_problem(tmp_path, capsys):
    file = tmp_path / "p.yaml"
    file.write_text("P: 2\nD: 4\nT: 3\nn_hid: inf\nsolver: {nodes: 4, neurons: 8, replicates: 1}\n")
    assert main(["theory", "solve", str(file), "T=5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["f"]), len(found["loss"])) == (2, 5)
    assert found["mc_error"] is None  # one replicate knows no error


def test_simulate_trains_every_size(capsys):
    assert main(["theory", "simulate", *TINY, SIZES, "networks.seeds=2", "--json"]) == 0
    networks = json.loads(capsys.readouterr().out)["networks"]
    assert [(each["N"], each["seeds"], len(each["loss"])) for each in networks] == [(8, 2, 4), (16, 2, 4)]


@pytest.mark.heavy
def test_compare_writes_numbers_and_figures(tmp_path, capsys):
    assert main(["theory", "compare", *TINY, SIZES, "networks.seeds=2", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "error over N: slope" in out
    found = json.loads((tmp_path / "compare.json").read_text())
    assert {each["dimension"] for each in found["approaches"]} == {"N", "parameters"}
    for name in ("loss", "router", "error", "kernels"):
        assert (tmp_path / f"{name}.svg").read_text().startswith("<svg")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert list(csv.DictReader((tmp_path / f"{name}.csv").read_text().splitlines()))


@pytest.mark.heavy
def test_kernels_are_of_the_limit_and_of_the_largest_networks(tmp_path, capsys, monkeypatch):
    assert main(["theory", "compare", *TINY, SIZES, "networks.seeds=2", "--out", str(tmp_path / "both")]) == 0
    assert "N 16" in (tmp_path / "both" / "kernels.svg").read_text()
    monkeypatch.setattr("expertp.cli.theory.MOST_GIGABYTES", 0.0)
    assert main(["theory", "compare", *TINY, SIZES, "networks.seeds=2", "--out", str(tmp_path / "none")]) == 0
    assert "kernels are not drawn" in capsys.readouterr().out
    assert not (tmp_path / "none" / "kernels.svg").exists()


@pytest.mark.heavy
def test_solve_draws_kernels(tmp_path, capsys):
    assert main(["theory", "solve", *TINY, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "kernels.svg").exists()
    assert len(json.loads((tmp_path / "solve.json").read_text())["loss"]) == 4


@pytest.mark.heavy
def test_size_answers_and_checks_itself(capsys, monkeypatch):
    from expertp.theory import sizing
    from expertp.theory.finite import Size

    design = (Size(8, 8, 8), Size(16, 8, 8), Size(32, 8, 8), Size(8, 16, 8), Size(8, 8, 16), Size(16, 16, 16))
    monkeypatch.setattr(sizing.measure_law, "__defaults__", (design, 3, sizing.silent))
    monkeypatch.setattr(sizing, "HELD_OUT", Size(24, 8, 8))
    assert main(["theory", "size", "P=3", "D=4", "T=4", "--within", "0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (answer,) = found["answers"]
    assert answer["within"] == 0.2
    assert set(answer["smallest"]) == {"N", "E", "n_hid", "L"}
    assert all(math.isfinite(found["held_out"][key]) for key in ("predicted", "measured"))


@pytest.mark.heavy
def test_verify_prints_a_table_and_its_json(capsys, tmp_path):
    assert main(["theory", "verify", "--only", "identities"]) == 0
    out = capsys.readouterr().out
    assert "6 of 6 checks passed" in out
    assert "PASS" in out
    assert main(["theory", "verify", "--only", "identities", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(set(each) == {"check", "value", "bound", "mc_error", "ok"} for each in found)
    assert json.loads((tmp_path / "verify.json").read_text()) == found


def test_a_check_that_fails_is_exit_code_1(capsys, monkeypatch):
    from expertp.theory import verify

    monkeypatch.setitem(verify.CHECKS, "identities", lambda _: iter([verify.Check("1 one", 2.0, high=1.0)]))
    assert main(["theory", "verify", "--only", "identities"]) == 1
    assert "0 of 1 check passed" in capsys.readouterr().out


BAD = {
    "optimizer=adam": "use gd",
    "readout=elementwise": "use readout=linear",
    "gate=hard kappa=0.3 solver.nodes=16": "make kappa * nodes whole",
    "kappa=0.5": "belongs to gate=hard",
    "eta=-1": "greater than 0",
    "gamma=1": "did you mean gamma0=VALUE?",
    "solver.form=kernel P=50 T=100": "GiB in the kernel form",
    "solver.form=reduced alpha_star=1": "use kernel or auto",
    "n_hid=2.5": "is not a whole number",
    "data=nowhere.csv": "no such file",
    "nowhere.yaml": "no such file",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_problems_are_one_line_and_exit_code_2(command, capsys, tmp_path):
    out = tmp_path / "out"
    assert main(["theory", "solve", *command.split(), "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert BAD[command] in err
    assert err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        (["compare", "eta=30", *TINY, SIZES], "lower eta"),
        (
            ["compare", "gate=hard", "kappa=1/3", *TINY[:4], "solver.nodes=3", "solver.neurons=4", SIZES],
            "make kappa * E whole",
        ),
        (["size", "--within", "2"], "between 0 and 1"),
        (["size", "alpha_star=1"], "leave both out"),
        (["verify", "--only", "identity"], "did you mean 'identities'?"),
        (["verify", "p.yaml"], "takes no problem"),
        (["soft-router"], "--out DIR"),
    ],
)
def test_what_cannot_be_done_says_why(command, fix, capsys):
    assert main(["theory", *command]) == 2
    err = capsys.readouterr().err
    assert fix in err
    assert err.count("\n") == 1


@pytest.mark.heavy
def test_infinite_depth_is_compared_with_networks_of_fewer_layers(tmp_path):
    # An alpha_star above 0 has no theory at finite n_hid, so the limit itself stands beside the networks' routers.
    for more in ((), ("alpha_star=0.1",)):
        command = [*TINY, SIZES, *more, "eta=0.02", "networks.seeds=2", "solver.infinite_depth=true"]
        assert main(["theory", "compare", *command, "--out", str(tmp_path)]) == 0
        assert (tmp_path / "router.svg").exists()


@pytest.mark.parametrize("override", ["L", "P", "T", "solver.nodes", "networks.sizes=[{N: 8, E: 4, n_hid: 4}]"])
def test_a_size_that_fits_into_no_memory_is_refused(override, capsys):
    huge = override.replace("N: 8", f"N: {10**19}") if "=" in override else f"{override}={10**19}"
    assert main(["theory", "simulate", *TINY, huge]) == 2
    assert "less than or equal to 10" in capsys.readouterr().err


def test_a_data_file_is_found_beside_the_problem_file(tmp_path, capsys, monkeypatch):
    (tmp_path / "points.csv").write_text("1,2\n3,4\n")
    (tmp_path / "p.yaml").write_text(
        "data: points.csv\nP: 2\nD: 2\nT: 2\nindices: 1\ndegree: 1\nsolver: {nodes: 4, neurons: 8}\n"
    )
    monkeypatch.chdir("/")
    assert main(["theory", "solve", str(tmp_path / "p.yaml")]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["theory", "solve", "data=points.csv", "P=2", "D=2", "T=2", "indices=1", "solver.neurons=8"]) == 0


@pytest.mark.parametrize("what", ["solve", "compare", "verify"])
def test_an_out_that_cannot_be_written_is_one_line_before_anything_is_solved(what, tmp_path, monkeypatch, capsys):
    solved = []
    for name in ("_solve", "_compare", "_verify"):
        monkeypatch.setitem(theory.VERBS, name[1:], solved.append)
    taken = tmp_path / "taken"
    taken.write_text("mine", encoding="utf-8")
    folder = tmp_path / "folder"
    (folder / f"{what}.json").mkdir(parents=True)
    for out in (taken, taken / "below", folder, "/proc/nowhere"):
        assert main(["theory", what, "--out", str(out)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("expertp: ")
        assert error.count("\n") == 1
    assert solved == []
    assert taken.read_text(encoding="utf-8") == "mine"
    assert [path.name for path in folder.iterdir()] == [f"{what}.json"]


def test_a_problem_that_is_refused_leaves_no_directory(tmp_path, capsys):
    assert main(["theory", "solve", "eta=-1", "--out", str(tmp_path / "new")]) == 2
    assert "eta" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_control_characters_is_printed_with_escapes(tmp_path, capsys):
    assert main(["theory", "simulate", *TINY, SIZES, "networks.seeds=2", "--out", f"{tmp_path}/\x1b[2J"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[2J: simulate.json" in out
