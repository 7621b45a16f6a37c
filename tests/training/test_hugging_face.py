"""Models of transformers in the training loop: as deterministic and resumable as the reference model."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hugging_face import KEYS, hf_run, model_tree
from runs import write_tokens

from expertp.data import Dataset, open_dataset
from expertp.errors import InputError
from expertp.training.checkpoints import newest_weights
from expertp.training.generate import load_model, next_logits
from expertp.training.loop import TrainingLoop, check_run, deterministic
from expertp.training.ranks import ALONE
from expertp.training.records import CLOCK_FIELDS, StepMetrics
from expertp.training.store import read_run
from expertp.training.tensor_files import TensorFiles, write_tensors
from expertp.training.train import train

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("tokens"), 4000, 1000)


@pytest.fixture(scope="module")
def dataset(data: Path) -> Dataset:
    return open_dataset(str(data))


def records(out: Path) -> list[StepMetrics]:
    return [replace(record, **dict.fromkeys(CLOCK_FIELDS, 0.0)) for record in read_run(out).metrics()]


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", KEYS)
def test_six_steps_are_three_and_a_resume_bit_for_bit(data: Path, tmp_path: Path, model_type: str) -> None:
    wide = model_tree(model_type, hidden_size=64, num_attention_heads=4, num_key_value_heads=4)
    if model_type == "mixtral":
        wide["hf"]["num_key_value_heads"] = 2
    base = model_tree(model_type)
    run = hf_run(data, model_type, model=wide, base=base, hps={"clip": 1.0, "weight_decay": 0.1})
    assert train(run, tmp_path / "whole").status == "finished"
    stops = iter([False, False, True])
    assert train(run, tmp_path / "parts", should_stop=lambda: next(stops)).status == "stopped"
    assert train(run, tmp_path / "parts").status == "finished"
    whole, parts = (newest_weights(read_run(tmp_path / name)) for name in ("whole", "parts"))
    assert whole is not None
    assert parts is not None
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert records(tmp_path / "whole") == records(tmp_path / "parts")
    last = records(tmp_path / "whole")[-1]
    n_moe = 1 if model_type == "deepseek_v3" else 2
    assert len(last.max_load_deviation) == len(last.dead_experts) == n_moe
    assert bool(last.bias_range) == (model_type == "deepseek_v3")
    assert "transformers" in read_run(tmp_path / "whole").environment


def test_tied_weights_are_saved_once_and_restored(dataset: Dataset, data: Path, tmp_path: Path) -> None:
    run = hf_run(data, "olmoe", model=model_tree("olmoe", tie_word_embeddings=True))
    first, second = (TrainingLoop(run, dataset, "cpu") for _ in range(2))
    first.step()
    assert "lm_head.weight" not in first.weights()
    files = write_tensors(tmp_path, first.weights(), first.optimizer_state(), ALONE)
    second.restore(1, TensorFiles(tuple(files)))
    assert second.step().loss == first.step().loss
    assert second.model.module.lm_head.weight is second.model.module.model.embed_tokens.weight


@pytest.mark.parametrize("model_type", KEYS)
def test_the_loss_is_that_of_transformers(dataset: Dataset, data: Path, model_type: str) -> None:
    model = TrainingLoop(hf_run(data, model_type, train={"balance": "none"}), dataset, "cpu").model
    tokens = torch.arange(34).view(2, 17) % 60
    ours = model.loss(tokens[:, :-1], tokens[:, 1:])
    theirs = model.module(input_ids=tokens, labels=tokens).loss
    assert ours.loss.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert ours.auxiliary.item() == 0
    assert ours.load_LE.sum(-1).unique().tolist() == [32 * 2]


def test_the_auxiliary_loss_has_the_planned_coefficient(dataset: Dataset, data: Path) -> None:
    """The loss of transformers grows with n_act; the plan divides its weight by the growth."""
    experts = {"num_experts": 8, "num_experts_per_tok": 4}
    run = hf_run(data, "olmoe", model=model_tree("olmoe", **experts), base=model_tree("olmoe"))
    model = TrainingLoop(run, dataset, "cpu").model
    tokens = torch.arange(32).view(2, 16)
    theirs = model.module(input_ids=tokens, output_router_logits=True).aux_loss
    assert model.loss(tokens, tokens).auxiliary.item() == pytest.approx(0.01 / 2 * theirs.item(), rel=1e-5)


def test_balancing_moves_the_selection_biases(dataset: Dataset, data: Path) -> None:
    loop = TrainingLoop(hf_run(data, "deepseek_v3", hps={"bias_lr": 0.1}), dataset, "cpu")
    load_LE = loop.step().load_LE
    bias = loop.model.module.model.layers[1].mlp.gate.e_score_correction_bias
    expected = -0.1 * (2 * load_LE[0] / load_LE[0].sum() - 0.5)
    torch.testing.assert_close(bias, expected.float())
    assert loop.model.bias_ranges() == [pytest.approx(float(bias.max() - bias.min()))]
    still = TrainingLoop(hf_run(data, "deepseek_v3", train={"balance": "none"}), dataset, "cpu")
    still.step()
    assert not still.model.module.model.layers[1].mlp.gate.e_score_correction_bias.any()


@pytest.mark.parametrize("model_type", KEYS)
def test_native_is_the_familys_own_init_and_one_learning_rate(data: Path, dataset: Dataset, model_type: str) -> None:
    from transformers import AutoModelForCausalLM

    wide = model_tree(model_type, hidden_size=64, num_attention_heads=4)
    if model_type != "mixtral":
        wide["hf"]["num_key_value_heads"] = 4
    else:
        wide["hf"]["num_key_value_heads"] = 2
    run = hf_run(data, model_type, model=wide, base=model_tree(model_type), hps={"rules": "native"})
    loop = TrainingLoop(run, dataset, "cpu")
    config = loop.model.module.config
    config.initializer_range = 0.05
    torch.manual_seed(0)
    theirs = dict(AutoModelForCausalLM.from_config(config).named_parameters())
    ours = dict(loop.model.module.named_parameters())
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    groups = loop.optimizer.param_groups
    assert {(group["lr"], group["eps"]) for group in groups} == {(0.01, 1e-8)}


@pytest.mark.parametrize("micro_batch", [2, 4])
def test_micro_batches_and_recomputation_change_nothing(data: Path, dataset: Dataset, micro_batch: int) -> None:
    """Loads are counted once: the integers are equal, and the loss up to the order of sums."""
    plain = TrainingLoop(hf_run(data, "deepseek_v3"), dataset, "cpu")
    changes = {"micro_batch": micro_batch, "activation_checkpointing": True}
    parts = TrainingLoop(hf_run(data, "deepseek_v3", train=changes), dataset, "cpu")
    for _ in range(2):
        one, other = plain.step(), parts.step()
        assert torch.equal(one.load_LE, other.load_LE)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes_train(data: Path, dataset: Dataset, dtype: str) -> None:
    loop = TrainingLoop(hf_run(data, "olmoe", train={"dtype": dtype}), dataset, "cpu")
    with deterministic("cpu"):
        assert all(math.isfinite(loop.step().loss) for _ in range(2))
    assert next(loop.model.module.parameters()).dtype == (torch.float64 if dtype == "float64" else torch.float32)


def test_a_trained_model_can_be_sampled_from(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from expertp.data.tokenizers import load_bytes
    from expertp.training import generate as module

    train(hf_run(data, "olmoe", train={"steps": 1, "eval_every": 0}), tmp_path / "run")
    monkeypatch.setattr(module, "_tokenizer", lambda _: load_bytes())
    loaded = load_model(tmp_path / "run")
    with torch.no_grad():
        expected = loaded.model.module(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1]
    torch.testing.assert_close(next_logits(loaded, torch.tensor([[1, 2, 3]]))[0], expected)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("olmoe", {"balance": "proportional"}, "'olmoe' has no selection bias; set train.balance=aux_loss or none"),
        (
            "deepseek_v3",
            {"balance": "aux_loss"},
            "has no auxiliary loss; set train.balance=none or proportional or sign",
        ),
        ("olmoe", {"expert_backend": "fused"}, "expert_backend=fused is of the reference model"),
        ("olmoe", {"expert_backend": "grouped", "dtype": "float64"}, "grouped does not support dtype=float64"),
    ],
)
def test_what_a_family_cannot_do_is_one_line(
    data: Path, dataset: Dataset, model_type: str, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_run(hf_run(data, model_type, train=changes), dataset, "cpu")


def test_base_and_model_are_of_one_kind(data: Path, dataset: Dataset) -> None:
    base = {"n_embd": 32, "d_head": 16, "n_layer": 2, "n_exp": 4, "n_act": 2, "vocab_size": 64, "context": 16}
    with pytest.raises(InputError, match="base and model are of different kinds"):
        check_run(hf_run(data, "olmoe", base=base), dataset, "cpu")
