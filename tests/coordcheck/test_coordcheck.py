"""The coordinate check: measurements, expected slopes, and that expertp passes where sp fails.

The quick version takes tiny models, made tokens and two axes. The full one (`pytest -m slow`) is the demo study.
"""

import hashlib
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from runs import VOCAB, tiny_run, write_tokens

from expertp.coordcheck.measuring import (
    Measurement,
    check_key,
    measure,
    probe_run,
    probed_runs,
    read_csv,
    recorded_steps,
    to_csv,
)
from expertp.coordcheck.slopes import (
    CHECKS,
    EXPECTED,
    TOLERANCES,
    analyse,
    expected_rows,
    expected_slopes,
    judge,
)
from expertp.data import Dataset, open_dataset
from expertp.errors import DamagedError
from expertp.spec import ModelSpec
from expertp.study.cells import sizes
from expertp.study.load import build_study, load_study
from expertp.study.spec import StudySpec
from expertp.training.loop import TrainingLoop
from scripts.docs_tables import markdown_table

CONFIGS = Path(__file__).parents[2] / "configs"
STEPS = 24


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset(write_tokens(tmp_path_factory.mktemp("tokens"), train=100_000))


def small_study(data: Path, **changes: object) -> StudySpec:
    base = {
        "n_embd": 32, "d_head": 16, "n_layer": 2, "n_exp": 4, "n_act": 1, "vocab_size": VOCAB, "context": 32,
    }  # fmt: skip
    tree = {
        "name": "small",
        "base": base,
        "hps": {"lr": 2**-6, "init_std": 0.05, "bias_lr": 0.05, "constants": "paper"},
        "train": {"data": str(data), "steps": 100, "batch_tokens": 1024, "warmup_steps": 10, "schedule": "cosine"},
        "axes": {"width": [32, 64, 128], "alpha": [1, 2, 4]},
        "grids": {"log2_lr": [-6]},
        "seeds": [0, 1],
    }
    return build_study({**tree, **changes}, "study:")


def table_of(slope_of: dict[tuple[str, str], float], study: StudySpec, noise: float = 0.0) -> list[Measurement]:
    """Return synthetic measurements on the width axis that follow exact powers, one seed above and one below."""
    return [
        Measurement("expertp", "width", scale, seed, step, module, quantity, 3.0 * scale ** (slope + sign * noise))
        for (module, quantity), slope in slope_of.items()
        for seed, sign in ((0, -1), (1, 1))
        for scale in [size.scale for size in sizes(study, "width")]
        for step in (0, 1, 12, 24)
        if step or quantity == "size"
    ]


def test_a_probed_run_trains_as_one_that_nobody_looks_at(dataset: Dataset) -> None:
    run = tiny_run(dataset.path, model={"linear_bias": True})
    plain, watched = (TrainingLoop(run, dataset, "cpu") for _ in range(2))
    probe = watched.model.probe(torch.arange(32).view(2, 16))
    for _ in range(4):
        probe.measure()
        assert watched.step().loss == plain.step().loss
    assert all(torch.equal(value, plain.weights()[name]) for name, value in watched.weights().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.model.module.modules())


@pytest.mark.parametrize("model", [{"linear_bias": True}, {"tied_embeddings": False}, {"gate": "softmax"}])
def test_sizes_are_those_of_a_computation_by_hand(dataset: Dataset, model: dict[str, object]) -> None:
    loop = TrainingLoop(tiny_run(dataset.path, model={"n_layer": 1, **model}), dataset, "cpu")
    tokens = torch.arange(32).view(2, 16)
    probe = loop.model.probe(tokens)
    before, first = _by_hand(loop, tokens), {name: value.clone() for name, value in loop.weights().items()}
    for _ in range(3):
        loop.step()
    now, last = _by_hand(loop, tokens), loop.weights()
    sizes = probe.measure()

    def rms(values: torch.Tensor) -> float:
        return values.square().mean().sqrt().item()

    name = "blocks.0.ffn.router.weight"
    assert sizes["router", "size"] == pytest.approx(rms(now["x"] @ last[name].T), rel=1e-5)
    assert sizes["router", "effective"] == pytest.approx(rms(now["x"] @ (last[name] - first[name]).T), rel=1e-4)
    assert sizes["router", "propagated"] == pytest.approx(rms((now["x"] - before["x"]) @ first[name].T), rel=1e-4)
    assert sizes["stream", "size"] == pytest.approx(rms(now["stream"]), rel=1e-5)
    assert sizes["embedding", "effective"] == pytest.approx(rms(now["embedded"] - before["embedded"]), rel=1e-4)
    assert sizes["block_sum", "size"] == pytest.approx(rms(now["stream"] - now["embedded"]), rel=1e-5)
    assert sizes["logits", "size"] == pytest.approx(rms(now["logits"]), rel=1e-5)
    # an expert's update, on the tokens that visit it now
    up, down = "blocks.0.ffn.experts.up", "blocks.0.ffn.experts.down"
    effective, propagated = [], []
    for expert in range(4):
        token = (now["expert"] == expert).any(-1)
        hidden = F.gelu(now["x"][token] @ last[up][expert])
        hidden_0 = F.gelu(before["x"][token] @ first[up][expert])
        effective.append(hidden @ (last[down][expert] - first[down][expert]))
        propagated.append((hidden - hidden_0) @ first[down][expert])
    assert sizes["expert_down", "effective"] == pytest.approx(rms(torch.cat(effective)), rel=1e-4)
    assert sizes["expert_down", "propagated"] == pytest.approx(rms(torch.cat(propagated)), rel=1e-4)


@torch.no_grad()
def _by_hand(loop: TrainingLoop, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return activations of a model with one block, computed from its modules."""
    model = loop.model.module
    embedded = model.token(tokens) + model.position.weight[: tokens.shape[1]]
    block = model.blocks[0]
    stream = embedded + block.residual * block.attn(block.attn_norm(embedded))
    x = block.ffn_norm(stream)
    stream = stream + block.residual * block.ffn(x).y_BSN
    flat = {"embedded": embedded, "x": x, "stream": stream, "logits": model.logits(stream)}
    return {"expert": block.ffn.router(x).expert_TK, **{name: value.flatten(0, 1) for name, value in flat.items()}}


def test_the_two_updates_add_up_to_the_change(dataset: Dataset) -> None:
    """With one token there is one vector per module, and |a + b| lies between ||a| - |b|| and |a| + |b|."""
    loop = TrainingLoop(tiny_run(dataset.path, model={"n_layer": 1}), dataset, "cpu")
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    probe = loop.model.probe(tokens)
    start = probe.measure()
    assert all(size == 0 for (_, quantity), size in start.items() if quantity != "size")
    loop.step()
    sizes = probe.measure()
    for module in ("attn_q", "attn_v", "attn_o", "router", "logits"):
        change = abs(sizes[module, "size"] - start[module, "size"])
        assert 0 < change <= (sizes[module, "effective"] + sizes[module, "propagated"]) * (1 + 1e-5)


def modules_of(model: ModelSpec) -> list[str]:
    absent = ("latent_", "dense_", "shared_", *(("ffn_",) if model.ffn == "moe" else ("router", "expert_", "moe_")))
    return [module for module in EXPECTED if not module.startswith(absent)]


@pytest.mark.parametrize("model", [{}, {"ffn": "dense", "n_exp": 1, "n_act": 1}])
def test_every_module_of_a_model_is_measured_and_expected(dataset: Dataset, model: dict[str, object]) -> None:
    run = tiny_run(dataset.path, model=model)
    probed = probe_run(run, dataset, steps=3)
    measured = {(module, quantity) for _, module, quantity, _ in probed.sizes}
    expected = {
        (module, check)
        for module in modules_of(run.model)
        for check in CHECKS
        if check != "init" and getattr(EXPECTED[module], check) is not None
    }
    assert measured == expected
    assert {(module, quantity) for step, module, quantity, _ in probed.sizes if step == 0} == {
        (module, "size") for module in modules_of(run.model)
    }


@pytest.mark.heavy
def test_the_expected_slopes_are_those_of_the_rules(dataset: Dataset) -> None:
    axes = {"width": [64], "depth": [4], "experts": [8], "alpha": [2]}
    joint = {"all": {"models": [{"n_embd": 64, "n_exp": 8, "n_act": 2, "alpha_ffn": 2}]}}
    study = small_study(dataset.path, axes=axes, joint=joint)

    def slopes(module: str, check: str, axis: str) -> tuple[float, float]:
        return expected_slopes(getattr(EXPECTED[module], check), study.base, sizes(study, axis), study.hps)

    assert slopes("router", "init", "width") == slopes("router", "propagated", "width") == (-0.5, -0.5)
    assert slopes("shared_gate", "init", "width") == (-0.5, -0.5)
    assert slopes("expert_down", "init", "alpha") == (-0.5, -0.5)
    assert slopes("moe_output", "init", "experts") == slopes("moe_output", "init", "alpha") == (-0.5, -0.5)
    assert slopes("moe_output", "init", "all") == pytest.approx((-1 / 3, -1 / 3))  # m_N m_E m_a = 8, (m_a K)^-1/2 = 1/2
    assert slopes("block_sum", "init", "depth") == (-0.5, -0.5)
    assert slopes("block_sum", "init", "alpha") == (-0.5, 0)
    assert slopes("stream", "init", "width") == (0, 0)
    assert slopes("logits", "init", "width") == (-0.5, -0.5)
    assert slopes("logits", "propagated", "width") == (-0.4, -0.4)
    exceptions = {
        ("router", "size", "width"), ("router", "propagated", "width"), ("logits", "propagated", "width"),
        ("expert_down", "propagated", "alpha"), ("ffn_down", "propagated", "alpha"),
        ("shared_gate", "size", "width"), ("shared_gate", "propagated", "width"),
        ("attn_o", "size", "width"), ("attn_o", "effective", "width"), ("attn_o", "propagated", "width"),
    }  # fmt: skip
    for module, expected in EXPECTED.items():
        for check in ("size", "effective", "propagated"):
            for axis in study.axes:
                if getattr(expected, check) is not None and (module, check, axis) not in exceptions:
                    assert slopes(module, check, axis) == (0, 0), (module, check, axis)


@pytest.mark.parametrize(("gamma", "slope"), [(0.5, 0), (1, -0.5), (2, -1.5)])
def test_the_routers_slope_follows_gamma(dataset: Dataset, gamma: float, slope: float) -> None:
    study = small_study(dataset.path, hps={"lr": 0.01, "gamma": gamma})
    low, high = expected_slopes(EXPECTED["router"].init, study.base, sizes(study, "width"), study.hps)
    assert (low, high) == pytest.approx((slope, slope))


def test_slopes_of_made_sizes(dataset: Dataset) -> None:
    study = small_study(dataset.path, axes={"width": [32, 64, 128]})
    table = table_of({("attn_v", "size"): 0.0, ("attn_v", "effective"): 0.9}, study, noise=0.02)
    check = analyse(table, study, "expertp", STEPS)
    by_name = {(slope.module, slope.check): slope for slope in check.slopes}
    assert list(by_name) == [("attn_v", "init"), ("attn_v", "size"), ("attn_v", "effective")]
    effective = by_name["attn_v", "effective"]
    assert effective.slope == pytest.approx(0.9)
    assert effective.standard_error == pytest.approx(0.02)
    assert (effective.seeds, effective.low, effective.high, effective.verdict) == (2, 0, 0, "FAIL")
    assert by_name["attn_v", "size"].verdict == "PASS"
    assert check.verdict == "FAIL"


@pytest.mark.parametrize(
    ("slope", "verdict"), [(0.0, "PASS"), (-0.5, "PASS"), (-0.9, "FAIL"), (0.5, "FAIL"), (-0.25, "PASS")]
)
def test_a_verdict_allows_what_lies_between_two_parts(slope: float, verdict: str) -> None:
    sizes = {0: {1.0: 1.0, 2.0: 2.0**slope}}
    judged = judge("alpha", "stream", "init", sizes, {1.0, 2.0}, (-0.5, 0.0))
    assert (judged.verdict, judged.standard_error, judged.seeds) == (verdict, None, 1)


def test_only_settled_steps_count(dataset: Dataset) -> None:
    study = small_study(dataset.path, axes={"width": [32, 64, 128]})
    table = table_of({("attn_v", "size"): 0.0}, study)
    spoilt = [
        Measurement(**{**vars(row), "value": 99.0}) if (row.step, row.scale) == (1, 1.0) else row for row in table
    ]
    assert analyse(spoilt, study, "expertp", STEPS) == analyse(table, study, "expertp", STEPS)


def test_a_size_that_is_zero_everywhere_proves_nothing() -> None:
    sizes = {0: {1.0: 0.0, 2.0: 0.0}}
    assert judge("width", "router", "init", sizes, {1.0, 2.0}, (-0.5, -0.5)).verdict == "-"
    some = {0: {1.0: 0.0, 2.0: 1.0}}
    assert judge("width", "router", "init", some, {1.0, 2.0}, (-0.5, -0.5)).verdict == "FAIL"


@pytest.mark.heavy
def test_a_diverged_run_fails_with_its_step_and_leaves_the_slopes_at_init(dataset: Dataset) -> None:
    study = small_study(dataset.path, axes={"width": [64]}, hps={"lr": 1e4, "init_std": 0.05}, seeds=[0, 1])
    runs = probed_runs(study, "expertp")
    check = analyse(measure(runs, dataset, 6), study, "expertp", 6)
    assert check.verdict == "FAIL"
    assert {(each.scale, each.seed) for each in check.diverged} == {(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1)}
    assert all(0 < each.step < 6 for each in check.diverged)
    at_init = [slope for slope in check.slopes if slope.check == "init"]
    assert len(at_init) == len(modules_of(study.base))
    assert all(slope.slope is not None for slope in at_init)
    assert all(slope.slope is None and slope.verdict == "FAIL" for slope in check.slopes if slope not in at_init)


def test_a_table_survives_its_csv(dataset: Dataset, tmp_path: Path) -> None:
    table = table_of({("attn_v", "size"): 1 / 3}, small_study(dataset.path))
    (tmp_path / "table.csv").write_text(to_csv(table))
    assert read_csv(tmp_path / "table.csv", None, "measure again") == table


@pytest.mark.parametrize("damage", [b"", b"\xff", b"rules,axis\n1,2\n", b"\x00", b'"', b"9" * 200_000], ids=repr)
def test_a_damaged_table_is_one_line(dataset: Dataset, tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "table.csv"
    whole = to_csv(table_of({("attn_v", "size"): 1 / 3}, small_study(dataset.path))).encode()
    path.write_bytes(whole[: len(whole) // 2].rsplit(b"\n", 1)[0] + damage)
    with pytest.raises(DamagedError, match=r"table.csv: damaged \(.*\); measure again$"):
        read_csv(path, hashlib.sha256(whole).hexdigest(), "measure again")
    path.write_bytes(b"rules,axis,scale,seed,step,module,quantity,value\n" + damage + b"\n1,2\n")
    with pytest.raises(DamagedError, match=r"damaged \(not a table of measurements\); measure again$"):
        read_csv(path, None, "measure again")


def test_runs_are_the_studys_at_the_full_learning_rate(dataset: Dataset) -> None:
    study = small_study(dataset.path)
    runs = probed_runs(study, "sp")
    assert len(runs) == 5 * 2  # the base is on both axes and trained once
    assert [(axis, size.scale, size.is_base) for axis, size in runs[0].sizes] == [
        ("width", 1.0, True), ("alpha", 1.0, True)
    ]  # fmt: skip
    assert {each.run.hps.rules for each in runs} == {"sp"}
    assert {(each.run.train.schedule, each.run.train.warmup_steps) for each in runs} == {("constant", 0)}
    assert {each.run.train.batch_tokens for each in runs} == {1024}


def test_the_key_knows_what_decides_the_numbers(dataset: Dataset) -> None:
    study = small_study(dataset.path)
    runs = probed_runs(study, "expertp")
    key = check_key(runs, 20, "data")
    assert key == check_key(probed_runs(small_study(dataset.path, name="another"), "expertp"), 20, "data")
    others = [
        check_key(runs, 21, "data"),
        check_key(runs, 20, "other data"),
        check_key(probed_runs(study, "sp"), 20, "data"),
        check_key(probed_runs(small_study(dataset.path, seeds=[0, 2]), "expertp"), 20, "data"),
    ]
    assert len({key, *others}) == 5


def test_steps_are_recorded_once_each_and_to_the_end() -> None:
    assert recorded_steps(3) == [0, 1, 2, 3]
    assert all(recorded_steps(steps)[-1] == steps for steps in range(3, 100))


def check_of(study: StudySpec, rules: str, dataset: Dataset, steps: int = STEPS):
    return analyse(measure(probed_runs(study, rules), dataset, steps), study, rules, steps)


@pytest.mark.heavy
def test_expertp_passes_and_sp_fails(dataset: Dataset) -> None:
    study = small_study(dataset.path, axes={"width": [32, 128], "alpha": [1, 4]})
    ours = check_of(study, "expertp", dataset)
    assert ours.verdict == "PASS", [slope for slope in ours.slopes if slope.verdict == "FAIL"]
    assert all(slope.standard_error is not None and math.isfinite(slope.standard_error) for slope in ours.slopes)
    standard = {(slope.axis, slope.module, slope.check): slope for slope in check_of(study, "sp", dataset).slopes}
    for module in ("attn_q", "attn_k", "attn_v", "attn_o", "router", "expert_up", "expert_down", "moe_output"):
        at_init = standard["width", module, "init"]
        assert at_init.verdict == "FAIL"
        assert at_init.slope > 0.4  # a sum over N inputs grows as N^1/2 when their std does not shrink
    for module in ("attn_q", "attn_k", "attn_v", "attn_o"):
        assert standard["width", module, "size"].verdict == "FAIL"
        assert standard["width", module, "effective"].slope > 0.35
    assert {standard["alpha", "expert_down", check].verdict for check in CHECKS} == {"FAIL"}
    assert {standard["alpha", "attn_v", check].verdict for check in CHECKS} == {"PASS"}


def test_the_page_has_the_expected_slopes_of_the_code() -> None:
    rows = [[f"`{cell}`" if cell else "" for cell in row] for row in expected_rows()]
    header = ("module", "size at init", "size after steps", "effective update", "propagated update")
    page = (CONFIGS.parent / "docs/coordcheck.md").read_text(encoding="utf-8")
    assert markdown_table(header, rows) in page
    assert all(f"{value:g}" in page for value in TOLERANCES.values())


@pytest.mark.slow
def test_the_demo_study_passes_under_expertp_and_fails_under_sp(tmp_path: Path) -> None:
    from expertp.data import PrepareOptions, prepare

    prepare("builtin", tmp_path / "data", PrepareOptions(tokenizer="bpe", vocab_size=1024))
    study = load_study(CONFIGS / "study.yaml", [f"train.data={tmp_path / 'data'}"])
    text = open_dataset(tmp_path / "data")
    ours = check_of(study, "expertp", text, 60)
    assert ours.verdict == "PASS", [slope for slope in ours.slopes if slope.verdict == "FAIL"]
    failed = {slope.axis for slope in check_of(study, "sp", text, 60).slopes if slope.verdict == "FAIL"}
    assert failed >= {"width", "depth", "alpha"}  # for more experts, the architecture's own 1/n_act is enough
