import math
import random
from functools import partial

import pytest
import yaml
from runs import tiny_study, write_tokens

from expertp.cli.main import main
from expertp.config import build
from expertp.errors import InputError
from expertp.plan import named_constants
from expertp.search.tune import (
    COORDINATES,
    FURTHEST,
    Outcome,
    TrainedCandidates,
    descend,
    moved,
    tuning_study,
    value_of,
    with_candidates,
)
from expertp.spec import BaseHPs
from expertp.study.cells import arms, expand
from expertp.study.load import load_study
from expertp.study.store import read_study
from expertp.study.sweep import InProcess

START = BaseHPs(lr=2**-6, init_std=2**-4)


class Quadratic:
    """Losses with a known minimum: quadratic in the logarithm of some coordinates, with noise."""

    def __init__(self, best, noise=0.001, seeds=5, diverges=lambda _: False, depth=0.02, load=lambda _: 0.05):
        self.best, self.noise, self.seeds, self.diverges, self.depth = best, noise, seeds, diverges, depth
        self.load = load

    def measure(self, candidates):
        return [Outcome(self.losses(hps), self.loads(hps)) for hps in candidates]

    def loads(self, hps):
        noise = random.Random(hps.model_dump_json())
        return tuple(self.load(hps) * 2 ** noise.uniform(-0.1, 0.1) for _ in range(self.seeds))

    def losses(self, hps):
        if self.diverges(hps):
            return (math.inf,) * self.seeds
        off = sum(math.log2(value_of(hps, name) / value) ** 2 for name, value in self.best.items())
        noise = random.Random(hps.model_dump_json())
        return tuple(3 + seed / 10 + self.depth * off + self.noise * noise.gauss(0, 1) for seed in range(self.seeds))


def result(losses, **options):
    path = list(descend(START, losses.measure, **options))
    return path, [trial for trial in path if trial.is_taken][-1].hps


def test_a_descent_finds_the_best_place_and_goes_further_the_way_that_helps():
    best = {"lr": 2**-8, "router_lr": 1 / 16, "mlp_down_init": 4.0}
    path, found = result(Quadratic(best))
    assert {name: value_of(found, name) for name in best} == best
    assert set(named_constants(found.constants)) == {"router_lr", "mlp_down_init"}
    taken = [(trial.coordinate, trial.value) for trial in path if trial.is_taken]
    assert taken[1:] == [
        ("lr", 2**-7),
        ("lr", 2**-8),
        ("mlp_down_init", 4.0),
        ("router_lr", 0.25),
        ("router_lr", 1 / 16),
    ]
    assert {trial.coordinate for trial in path} == {"", *COORDINATES}


def test_noise_alone_moves_next_to_nothing():
    path, _ = result(Quadratic({}, noise=0.05, seeds=4))
    assert sum(trial.is_taken for trial in path) - 1 <= 4
    assert {trial.why for trial in path if not trial.is_taken} <= {
        "no significant change", "higher loss", "the other way is better"
    }  # fmt: skip


def test_a_gain_that_one_seed_makes_is_not_taken():
    def measure(candidates):
        return [Outcome((3.0, 3.1, 3.2, 3.3 - (hps != START)), (0.05,) * 4) for hps in candidates]

    path = list(descend(START, measure, coordinates=("router_lr",)))
    assert [trial.is_taken for trial in path] == [True, False, False]
    assert path[1].change.mean == pytest.approx(-0.25)


def test_a_lower_loss_that_diverges_an_octave_above_is_refused():
    unstable = Quadratic({"lr": 2**-4}, diverges=lambda hps: hps.lr > 2**-5)
    path, found = result(unstable, coordinates=("lr",))
    assert found.lr == 2**-6
    (refused,) = [trial for trial in path if trial.value == 2**-5]
    assert refused.why == "diverges on 5 of 5 seeds at twice its lr"
    assert refused.change.is_lower


def test_what_makes_an_unstable_start_stable_is_taken_without_a_gain():
    shaky = Quadratic({}, diverges=lambda hps: hps.lr > START.lr and value_of(hps, "router_lr") >= 1, depth=0)
    path, found = result(shaky, coordinates=("router_lr",))
    assert path[0].above.diverged == 5
    assert value_of(found, "router_lr") == 0.25
    assert [trial.why for trial in path if trial.is_taken] == ["start", "more stable"]


def test_a_lower_loss_that_upsets_the_loads_is_refused():
    tempting = Quadratic({"lr": 2**-7}, load=lambda hps: 0.4 if hps.lr == 2**-7 else 0.1)
    path, found = result(tempting, coordinates=("lr",))
    assert found == START
    (refused,) = [trial for trial in path if trial.value == 2**-7]
    assert refused.why.startswith("uneven loads (max |Load - kappa| 0.4")
    assert refused.change.is_lower


def test_uneven_loads_an_octave_above_do_not_count():
    def load(hps):
        return 0.4 if hps.lr > START.lr and value_of(hps, "router_lr") > 1 else 0.1

    tempting = Quadratic({"router_lr": 4.0}, load=load)
    path, found = result(tempting, coordinates=("router_lr",))
    assert value_of(found, "router_lr") == 4.0
    (taken,) = [trial for trial in path if trial.value == 4.0]
    assert taken.above.load > 4 * taken.outcome.load / 1.2


def test_what_evens_the_loads_is_taken_if_it_costs_no_loss():
    def load(hps):
        return 0.4 * value_of(hps, "router_lr")

    path, found = result(Quadratic({}, depth=0, load=load, noise=0), coordinates=("router_lr",))
    assert value_of(found, "router_lr") == 1 / FURTHEST
    assert {trial.why for trial in path[1:] if trial.is_taken} == {"more stable"}
    _, found = result(Quadratic({"router_lr": 1.0}, load=load), coordinates=("router_lr",))
    assert found == START


def test_loads_that_change_by_less_than_an_octave_do_not_count():
    shifting = Quadratic({}, depth=0, noise=0, load=lambda hps: 0.17 if named_constants(hps.constants) else 0.1)
    path, found = result(shifting)
    assert found == START
    assert {trial.why for trial in path[1:]} == {"no significant change"}


def test_a_model_without_loads_is_judged_by_loss_alone():
    def dense(hps):
        return Outcome(Quadratic({"lr": 2**-7}).losses(hps), (math.nan,) * 5)

    path = list(descend(START, lambda candidates: list(map(dense, candidates)), coordinates=("lr",)))
    assert [trial.value for trial in path if trial.is_taken][1:] == [2**-7]


def test_a_candidate_that_diverges_is_never_taken():
    path, found = result(Quadratic({"lr": 1.0}, diverges=lambda hps: hps.lr > START.lr), coordinates=("lr",))
    assert found == START
    assert "diverges on 5 of 5 seeds" in {trial.why for trial in path}


def test_a_coordinate_goes_only_so_far():
    _, found = result(Quadratic({"norm_lr": 4.0**9}), coordinates=("norm_lr",), passes=3)
    assert value_of(found, "norm_lr") == FURTHEST


def test_the_next_pass_comes_only_after_a_change():
    still, moving = Quadratic({}, noise=0), Quadratic({"lr": 2**-7}, noise=0)
    path, _ = result(still, passes=3, coordinates=("lr", "init_std"))
    assert len(path) == 1 + 2 * 2
    path, _ = result(moving, passes=3, coordinates=("lr", "init_std"))
    assert len(path) == 1 + (3 + 2) + (2 + 2)


def test_a_constant_that_is_one_again_is_forgotten():
    assert moved(moved(START, "router_lr", 4), "router_lr", 0.25) == START


def test_candidates_are_arms_of_the_base_alone(tmp_path):
    study = tuning_study(tiny_study(write_tokens(tmp_path), seeds=(0, 1, 2)))
    candidate = moved(study.hps, "router_lr", 0.25)
    grown = with_candidates(with_candidates(study, [study.hps, candidate]), [candidate])
    own, arm = arms(grown)
    assert (own.hps, arm.hps) == (study.hps, candidate)
    assert {cell.arm for cell in expand(grown)} == {own, arm}
    assert {cell.size.model for cell in expand(grown)} == {study.base}
    twice = moved(candidate, "lr", 2)
    assert [arm.hps for arm in arms(with_candidates(grown, [twice, candidate]))] == [study.hps, candidate, twice]


def test_too_few_seeds_are_refused(tmp_path):
    with pytest.raises(InputError, match="seeds: 2 cannot tell a change from chance; give at least 3"):
        tuning_study(tiny_study(write_tokens(tmp_path), seeds=(0, 1)))


@pytest.fixture
def study_file(tmp_path):
    tree = tiny_study(write_tokens(tmp_path / "tokens"), seeds=(0, 1, 2)).to_dict()
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.heavy
def test_each_candidate_is_trained_once(study_file, tmp_path):
    study = tuning_study(load_study(study_file))
    candidates = TrainedCandidates(study, tmp_path / "out", InProcess())
    other = moved(study.hps, "mlp_down_lr", 4)
    first = candidates.measure([study.hps, other])
    assert len(read_study(tmp_path / "out").runs) == 6
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("*/summary.json")}
    assert candidates.measure([other, study.hps]) == first[::-1]
    assert times == {path: path.stat().st_mtime_ns for path in times}
    assert first[0] != first[1]


@pytest.mark.heavy
def test_a_candidate_is_the_same_whichever_way_it_was_reached(study_file, tmp_path):
    study = tuning_study(load_study(study_file))
    one = moved(moved(study.hps, "router_lr", 4), "mlp_down_lr", 4)
    other = moved(moved(study.hps, "mlp_down_lr", 4), "router_lr", 4)
    candidates = TrainedCandidates(study, tmp_path / "out", InProcess())
    assert candidates.measure([one]) == candidates.measure([other])
    resumed = TrainedCandidates(study, tmp_path / "out", InProcess())
    (found,) = resumed.measure([other])
    assert len(found.loads) == 3
    assert len(read_study(tmp_path / "out").runs) == 6


@pytest.mark.heavy
def test_a_descent_that_began_elsewhere_is_refused_and_kept(study_file, tmp_path):
    study = tuning_study(load_study(study_file))
    twice = moved(study.hps, "lr", 2)
    TrainedCandidates(study, tmp_path / "out", InProcess()).measure([twice])
    before = (tmp_path / "out" / "study.json").read_bytes()
    other = tuning_study(load_study(study_file, [f"hps.lr={twice.lr}"]))
    with pytest.raises(InputError, match=r"holds another study \(hps.lr="):
        TrainedCandidates(other, tmp_path / "out", InProcess()).measure([other.hps])
    assert (tmp_path / "out" / "study.json").read_bytes() == before


@pytest.mark.heavy
@pytest.mark.usefixtures("in_process")
def test_the_verb_writes_a_preset_that_a_study_can_hold(study_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("expertp.search.tune.COORDINATES", ("lr", "mlp_down_lr"))
    monkeypatch.setattr("expertp.search.tune.descend", partial(descend, coordinates=("lr", "mlp_down_lr")))
    out = tmp_path / "tuned"
    assert main(["tune", str(study_file), "--out", str(out), "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "candidates" in said
    assert str(out / "preset.yaml") in said
    preset = yaml.safe_load((out / "preset.yaml").read_text())
    assert build(BaseHPs, preset["hps"], "preset").lr > 0
    rows = (out / "path.csv").read_text().splitlines()
    assert rows[0].startswith("pass,coordinate,value,loss,change")
    assert len(rows) >= 1 + 1 + 4
    assert "max |Load" in (out / "path.svg").read_text()
    assert main(["tune", str(study_file), "--out", str(out), "--workers", "1", "--json"]) == 0
    assert '"path"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--out DIR is missing"),
        (["--out", "x", "--passes", "0"], "--passes: 0 is not a positive integer"),
        (["--out", "x", "seeds=[0]", "verdict=null"], "seeds: 1 cannot tell a change from chance"),
        (["--out", "x", "hps.lr=1e-20"], "hps.lr: log2_lr"),
        (["--dry-run", "base.vocab_size=8"], "vocab_size"),
    ],
)
def test_bad_input_is_one_line(study_file, arguments, said, capsys):
    assert main(["tune", str(study_file), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_says_what_a_pass_costs(study_file, capsys):
    assert main(["tune", str(study_file), "--dry-run", "--workers", "1"]) == 0
    assert f"at least {(2 * len(COORDINATES) + 2) * 3} runs per pass" in capsys.readouterr().out
