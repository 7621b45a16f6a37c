"""YAML <-> specs: round trips, overrides, the identity of a run. Errors of `expertp plan` are in cli/test_plan.py."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from expertp.config import build, content_hash, load_base, load_run, load_target, run_id, split_overrides
from expertp.errors import InputError
from expertp.spec import BaseHPs, ModelSpec, ParallelSpec, RunSpec, Spec, TrainSpec
from expertp.util.plain_yaml import read_yaml, to_yaml

MODEL: dict[str, Any] = {"n_embd": 128, "n_layer": 2, "n_exp": 4, "n_act": 1, "context": 256}
HPS: dict[str, Any] = {"lr": 0.01, "constants": {"router_lr": 0.5}}
TRAIN: dict[str, Any] = {"data": "tokens", "steps": 10, "batch_tokens": 1024}


def positive(maximum: float = 1e3) -> st.SearchStrategy[float]:
    return st.floats(0, maximum, exclude_min=True)


models = st.builds(
    lambda heads, act, more, moe, hidden, **rest: ModelSpec(
        n_embd=8 * heads,
        d_head=8,
        alpha_ffn=hidden / (8 * heads),  # mostly no finite decimal
        **({"n_exp": act + more, "n_act": act} if moe else {"ffn": "dense"}),
        **rest,
    ),
    heads=st.integers(1, 99),
    act=st.integers(1, 9),
    more=st.integers(0, 99),
    moe=st.booleans(),
    hidden=st.integers(1, 999),
    n_layer=st.integers(1, 99),
    context=st.sampled_from((64, 1024)),
    gate=st.sampled_from(("sigmoid", "softmax")),
    tied_embeddings=st.booleans(),
    linear_bias=st.booleans(),
)
hyperparameters = st.builds(
    BaseHPs,
    lr=positive(),
    init_std=positive(),
    adam_eps=positive(1.0),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    weight_decay=st.floats(0, 10),
    gamma=st.one_of(st.floats(0.5, 9), st.just(float("inf"))),
    rules=st.sampled_from(
        ("expertp", "sp", "mup", "completep", "fan_in_down", "no_depth", "no_mean", "no_alpha", "fan_in_stack")
    ),
    eps_rule=st.sampled_from(("consistent", "paper")),
    residual=st.sampled_from(("relative", "absolute")),
    decay=st.sampled_from(("independent", "tau")),
    tuned_steps=st.none() | st.integers(1, 10**9),
    constants=st.one_of(
        st.sampled_from(("ones", "paper")), st.dictionaries(st.sampled_from(("router_lr", "mlp_up_init")), positive())
    ),
    clip=st.none() | positive(),
)
trainings = st.builds(
    TrainSpec,
    data=st.text(min_size=1),
    steps=st.integers(20, 10**6),
    batch_tokens=st.integers(1, 64).map(lambda sequences: 1024 * sequences),
    warmup_steps=st.integers(0, 20),
    dtype=st.sampled_from(("auto", "float32", "bfloat16", "float64")),
    seed=st.integers(0, 2**63),
    diverge_above=st.none() | positive() | st.just(float("inf")),
    balance=st.sampled_from(("proportional", "sign", "aux_loss", "none")),
    device=st.sampled_from(("auto", "cpu", "cuda")),
    checkpoint_seconds=positive(),
    checkpoint_steps=st.none() | st.integers(1, 99),
)
runs = st.builds(
    RunSpec, base=models, model=models, hps=hyperparameters, train=trainings, allow_kappa_change=st.booleans()
)


@pytest.mark.heavy
@pytest.mark.parametrize("specs", [models, hyperparameters, trainings, runs], ids=["model", "hps", "train", "run"])
@given(data=st.data())
def test_a_spec_written_as_yaml_loads_back_equal(specs: st.SearchStrategy[Spec], data: st.DataObject) -> None:
    spec = data.draw(specs)
    text = yaml.safe_dump(spec.to_dict())
    loaded = build(type(spec), yaml.safe_load(text), "spec")
    assert loaded == spec
    assert yaml.safe_dump(loaded.to_dict()) == text


def write(path: Path, **sections: object) -> Path:
    path.write_text(yaml.safe_dump(sections), encoding="utf-8")
    return path


@pytest.fixture
def base_file(tmp_path: Path) -> Path:
    return write(tmp_path / "base.yaml", model=MODEL, hps=HPS)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return write(tmp_path / "run.yaml", model=MODEL, hps=HPS, train=TRAIN)


def test_a_base_file_holds_a_model_and_its_hyperparameters(base_file: Path) -> None:
    assert load_base(base_file) == (ModelSpec(**MODEL), BaseHPs(**HPS))


def test_an_override_beats_the_file_and_a_later_override_an_earlier_one(base_file: Path) -> None:
    _, hps = load_base(base_file, ["hps.lr=0.5", "hps.init_std=1/4", "hps.lr=0.25"])
    assert (hps.lr, hps.init_std, hps.constants) == (0.25, 0.25, {"router_lr": 0.5})


def test_an_override_can_reach_one_constant_and_keeps_the_others(base_file: Path) -> None:
    _, hps = load_base(base_file, ["hps.constants.attn_o_lr=1/8"])
    assert hps.constants == {"router_lr": 0.5, "attn_o_lr": 0.125}


def test_an_override_of_one_constant_starts_from_ones_but_never_silently_drops_a_preset(tmp_path: Path) -> None:
    ones = write(tmp_path / "ones.yaml", model=MODEL, hps={"lr": 1, "constants": "ones"})
    assert load_base(ones, ["hps.constants.router_lr=2"])[1].constants == {"router_lr": 2.0}
    paper = write(tmp_path / "paper.yaml", model=MODEL, hps={"lr": 1, "constants": "paper"})
    with pytest.raises(InputError, match=r"hps\.constants is the preset 'paper', which has no keys"):
        load_base(paper, ["hps.constants.router_lr=2"])


def test_overrides_of_a_target_address_its_model(base_file: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target.yaml", model=MODEL)
    assert load_target(target, ["model.n_embd=256"]) == ModelSpec(**{**MODEL, "n_embd": 256})


def test_a_run_without_a_base_is_its_own_base(run_file: Path) -> None:
    run = load_run(run_file, ["model.n_embd=256", "train.steps=7", "hps.lr=1"])
    assert run.base == run.model == ModelSpec(**{**MODEL, "n_embd": 256})
    assert (run.train.steps, run.hps.lr) == (7, 1.0)


def test_an_override_of_the_base_starts_from_the_model(run_file: Path) -> None:
    run = load_run(run_file, ["base.n_layer=1", "model.n_layer=4", "allow_kappa_change=true"])
    assert (run.base.n_layer, run.model.n_layer, run.base.n_embd) == (1, 4, 128)
    assert run.allow_kappa_change


@pytest.mark.parametrize(
    ("changes", "overrides", "message"),
    [
        ({"hps": {}}, [], "run.yaml: hps.lr: is missing; give it a value"),
        ({"model": {**MODEL, "n_embd": "wide"}}, [], "run.yaml: model.n_embd: must be a whole number"),
        ({"model": {**MODEL, "n_embed": 3}}, [], "run.yaml: model.n_embed: unknown key; did you mean 'n_embd'?"),
        ({"model": "abc"}, ["base.n_embd=64"], "run.yaml: model: expected keys and values, found str"),
        ({"base": {**MODEL, "n_layer": 0}}, [], "run.yaml: base.n_layer: input should be greater than 0, not 0"),
        ({"train": {**TRAIN, "batch_tokens": 300}}, [], "run.yaml: train.batch_tokens=300 is not a multiple of"),
        ({"allow_kappa_change": "perhaps"}, [], "run.yaml: allow_kappa_change: must be true or false"),
        ({"trian": {}}, [], "run.yaml: trian: unknown section; did you mean 'train'?"),
        ({}, ["train=5"], "'train=5' is not an override; write base.KEY=VALUE, model.KEY=VALUE"),
        ({}, ["hps.lr"], "'hps.lr' is not an override; write base.KEY=VALUE"),
        ({}, ["steps=5"], "'steps=5' is not an override; did you mean train.steps=5?"),
        ({}, ["n_embd=64"], "did you mean base.n_embd=64 or model.n_embd=64?"),
        ({}, ["constants.router_lr=2"], "did you mean hps.constants.router_lr=2?"),
        ({}, ["steps"], "'steps' is not an override; write base.KEY=VALUE"),
        ({}, ["train.step=5"], "'train.step=5': step: unknown key; did you mean 'steps'?"),
    ],
)
def test_an_error_in_a_run_file_names_the_place_that_the_user_wrote(
    tmp_path: Path, changes: dict[str, Any], overrides: list[str], message: str
) -> None:
    sections = {"model": MODEL, "hps": HPS, "train": TRAIN, **changes}
    with pytest.raises(InputError) as refusal:
        load_run(write(tmp_path / "run.yaml", **sections), overrides)
    assert message in str(refusal.value)


@pytest.mark.parametrize("section", ["model", "hps", "train"])
def test_a_run_file_needs_its_sections(tmp_path: Path, section: str) -> None:
    sections = {"model": MODEL, "hps": HPS, "train": TRAIN}
    del sections[section]
    with pytest.raises(InputError, match=f"section '{section}:' is missing; a run file has"):
        load_run(write(tmp_path / "run.yaml", **sections))


@given(st.dictionaries(st.text(min_size=1), st.one_of(st.text(), st.floats(allow_nan=False), st.lists(st.integers()))))
def test_yaml_that_is_written_is_read_back(tree: dict[str, Any]) -> None:
    assert read_yaml(to_yaml(tree)) == tree


@pytest.mark.parametrize("text", ["1e5", "0x10", "null", "yes", "~", "a: b", "1:30", "- a", "\x1b", "a\nb", "#"])
def test_a_string_stays_a_string(text: str) -> None:
    assert read_yaml(to_yaml({"name": text, "in a list": [text]})) == {"name": text, "in a list": [text]}


def test_overrides_are_sorted_by_section() -> None:
    sorted_overrides = split_overrides(["hps.lr=1", "model.n_embd=2", "hps.lr=3"], {"model": ModelSpec, "hps": BaseHPs})
    assert sorted_overrides == {"model": ["model.n_embd=2"], "hps": ["hps.lr=1", "hps.lr=3"]}


RUN = RunSpec(base=MODEL, model=MODEL, hps=HPS, train=TRAIN)
# Values that differ from those of RUN, one for each field that may change alone.
OTHER_TRAINING = {
    "steps": 11,
    "batch_tokens": 2048,
    "micro_batch": 2,
    "schedule": "cosine",
    "warmup_steps": 1,
    "dtype": "bfloat16",
    "seed": 1,
    "eval_every": 1,
    "eval_tokens": 1024,
    "log_every": 2,
    "diverge_above": 9.0,
    "balance": "sign",
    "aux_weight": 0.5,
    "expert_backend": "loop",
    "activation_checkpointing": True,
    "device": "cpu",
}
OPERATIONAL = {"data": "elsewhere", "checkpoint_seconds": 1.0, "checkpoint_steps": 3}


def run_with(section: str, **changes: object) -> RunSpec:
    tree = RUN.to_dict()
    return RunSpec(**{**tree, section: {**tree[section], **changes}})


@pytest.mark.parametrize(("field", "value"), OPERATIONAL.items())
def test_where_files_lie_and_how_often_to_save_is_not_part_of_a_runs_identity(field: str, value: object) -> None:
    changed = run_with("train", **{field: value})
    assert changed != RUN
    assert run_id(changed, "data") == run_id(RUN, "data")


@pytest.mark.parametrize("field", ParallelSpec.model_fields)
def test_the_layout_is_not_part_of_a_runs_identity(field: str) -> None:
    assert run_id(run_with("parallel", **{field: 2}), "data") == run_id(RUN, "data")
    earlier = {section: value for section, value in RUN.to_dict().items() if section != "parallel"}
    earlier["train"] = {key: value for key, value in earlier["train"].items() if key not in OPERATIONAL}
    assert run_id(RUN, "data") == content_hash({"run": earlier, "data": "data"})


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        *(("train", field, value) for field, value in OTHER_TRAINING.items()),
        ("model", "n_embd", 256),
        ("base", "n_embd", 256),
        ("model", "linear_bias", True),
        ("hps", "lr", 0.02),
        ("hps", "gamma", float("inf")),
        ("hps", "constants", "ones"),
        ("hps", "clip", 1.0),
    ],
)
def test_everything_else_is_part_of_a_runs_identity(section: str, field: str, value: object) -> None:
    assert run_id(run_with(section, **{field: value}), "data") != run_id(RUN, "data")


def test_every_field_of_a_training_is_classified() -> None:
    depends_on_schedule = {"decay_steps"}
    assert {*OTHER_TRAINING, *OPERATIONAL, *depends_on_schedule} == set(TrainSpec.model_fields)


def test_the_data_and_the_permission_to_change_kappa_are_part_of_a_runs_identity() -> None:
    assert run_id(RUN, "data") != run_id(RUN, "other data")
    allowed = RunSpec(**{**RUN.to_dict(), "allow_kappa_change": True})
    assert run_id(allowed, "data") != run_id(RUN, "data")


@given(runs, runs)
def test_two_runs_share_an_identity_only_if_they_compute_the_same(one: RunSpec, two: RunSpec) -> None:
    assume(one != two)

    def computed(run: RunSpec) -> dict[str, Any]:
        tree = run.to_dict()
        return {**tree, "train": {key: value for key, value in tree["train"].items() if key not in OPERATIONAL}}

    assert (run_id(one, "data") == run_id(two, "data")) == (computed(one) == computed(two))


def test_a_run_has_the_same_identity_in_another_process_and_in_any_order_of_keys(run_file: Path) -> None:
    text = run_file.read_text(encoding="utf-8")
    reordered = dict(reversed(yaml.safe_load(text).items()))
    run_file.write_text(yaml.safe_dump(reordered, sort_keys=False), encoding="utf-8")
    program = "import sys; from expertp.config import *; print(run_id(load_run(sys.argv[1]), 'data'))"
    printed = subprocess.run(
        [sys.executable, "-c", program, str(run_file)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "12345"},
    )
    assert printed.stdout.strip() == run_id(RUN, "data")


def test_an_id_is_16_hex_digits() -> None:
    identity = run_id(RUN, "data")
    assert len(identity) == 16
    assert set(identity) <= set("0123456789abcdef")


@pytest.mark.parametrize("spec", [ModelSpec, BaseHPs, TrainSpec, RunSpec])
def test_no_spec_takes_a_field_that_it_does_not_declare(spec: type[Spec]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        spec.model_validate({"surprise": 1})


@pytest.mark.parametrize("spec", [ModelSpec, BaseHPs, TrainSpec])
def test_every_field_is_described(spec: type[Spec]) -> None:
    assert all(field.description for field in spec.model_fields.values())


# 9 values in a list of 9 aliases of a list of 9 aliases ...: 300 characters stand for 9^8 values.
BOMB = "\n".join(f"k{n}: &k{n} [{', '.join(['1' if n == 0 else f'*k{n - 1}'] * 9)}]" for n in range(8))
NOT_ACCEPTED = {
    "aliases that multiply": (BOMB, "more than 10000 values"),
    "an alias inside a value": (f"model: {{n_embd: &x [{'1, ' * 4000}1], n_layer: [*x, *x, *x]}}", "more than 10000"),
    "a value that contains itself": ("model: &m {n_embd: *m}", "a value contains itself"),
    "a key that is a list": ("? [a]\n: 1\n", "line 1: not YAML: a key must be a word or a number"),
    "a tagged boolean": ("model: !!bool maybe", "tag '!!bool' is not supported"),
    "a tagged number": ("model: !!float ''", "tag '!!float' is not supported"),
    "too many digits": (f"model: {'9' * 5000}", "Exceeds the limit"),
    "too many brackets": ("model: " + "[" * 100_000, "not YAML"),
    "too large": ("# " + "x" * 300_000, "larger than 256 KiB"),
}


@pytest.mark.parametrize("case", NOT_ACCEPTED)
def test_yaml_that_is_too_large_or_too_clever_gets_one_short_line(case: str, tmp_path: Path) -> None:
    text, message = NOT_ACCEPTED[case]
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_run(path)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", ["9" * 400, "-" + "9" * 400, f"[{'9' * 400}]", "18446744073709551616"])
@pytest.mark.parametrize("key", ["model.n_embd", "train.steps", "train.seed", "hps.tuned_steps"])
def test_an_integer_of_400_digits_is_an_error(run_file: Path, key: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        load_run(run_file, [f"{key}={value}"])
    assert len(str(caught.value)) < 300


def test_a_message_repeats_a_bounded_part_of_a_value(run_file: Path) -> None:
    for override in (
        f"train.steps={'x' * 9999}",
        f"train.steps={[1] * 9999}",
        f"{'y' * 9999}=1",
        f"train.{'z' * 9999}=1",
    ):
        with pytest.raises(InputError) as caught:
            load_run(run_file, [override])
        assert len(str(caught.value)) < 600


def test_a_relative_path_in_a_file_starts_at_the_file(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "linked").symlink_to(run_file.parent)
    for start in (tmp_path, Path("/")):
        monkeypatch.chdir(start)
        assert load_run(run_file).train.data == str(run_file.parent / "tokens")
        linked = tmp_path / "linked" / run_file.name
        assert load_run(os.path.relpath(linked, start)).train.data == str(tmp_path / "linked" / "tokens")
        absolute = str(tmp_path / "elsewhere")
        run_file_2 = tmp_path / "absolute.yaml"
        run_file_2.write_text(run_file.read_text().replace("data: tokens", f"data: {absolute}"))
        assert load_run(run_file_2).train.data == absolute


def test_a_relative_path_in_an_override_starts_at_the_working_directory(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert load_run(run_file, ["train.data=../here"]).train.data == str(tmp_path / "here")
