import json

import pytest
import torch
from runs import tiny_run

from expertp.cli.main import main
from expertp.data import PrepareOptions, prepare
from expertp.training.generate import generate, load_model, next_logits
from expertp.training.loop import autocast
from expertp.training.train import train

TEXT = "the cat sat on the mat. the dog sat on the log. é ü 🙂 "


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model on bytes that has nearly memorized one sentence."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "text").mkdir()
    for number in range(4):
        (folder / "text" / f"{number}.txt").write_text(TEXT * 40, encoding="utf-8")
    prepare(str(folder / "text"), folder / "data", PrepareOptions(tokenizer="bytes", val_fraction=0.2))
    model = {"n_embd": 32, "d_head": 16, "n_layer": 2, "n_exp": 4, "n_act": 2, "vocab_size": 320, "context": 24}
    run = tiny_run(
        folder / "data",
        base={**model, "n_embd": 16},  # so that the logit multiplier is not 1
        model=model,
        hps={"lr": 0.02},
        train={"steps": 150, "batch_tokens": 384, "eval_every": 0},
    )
    train(run, folder / "run")
    return folder / "run"


def test_generation_sees_the_logits_that_training_sees(trained):
    loaded = load_model(trained)
    model, ids = loaded.model.module, loaded.tokenizer.encode(TEXT)[:24]
    assert model.multipliers.logits == 0.5
    targets = [*ids[1:], 0]
    with torch.no_grad():
        loss = model(torch.tensor([ids]), torch.tensor([targets])).loss
    logits = torch.stack([next_logits(loaded, ids[: n + 1]) for n in range(24)])
    assert torch.nn.functional.cross_entropy(logits, torch.tensor(targets)).item() == pytest.approx(
        loss.item(), rel=1e-5
    )


def test_bfloat16_logits_are_those_of_a_bfloat16_forward_pass(trained):
    loaded = load_model(trained)._replace(dtype="bfloat16")
    ids = loaded.tokenizer.encode(TEXT)[:24]
    with torch.no_grad(), autocast("bfloat16", "cpu"):
        hidden = loaded.model.module.hidden(torch.tensor([ids])).h_BSN
        expected = loaded.model.module.logits(hidden[:, -1:])[0, 0]
    assert torch.equal(next_logits(loaded, ids), expected)


def test_a_run_is_sampled_in_the_type_it_was_trained_in(trained):
    loaded = load_model(trained)
    ids = loaded.tokenizer.encode("the cat")
    exact, rounded = next_logits(loaded, ids), next_logits(loaded._replace(dtype="bfloat16"), ids)
    assert loaded.dtype == "float32"
    assert not torch.equal(exact, rounded.float())


def test_a_model_that_knows_its_text_recites_it(trained, capsys):
    assert main(["generate", str(trained), "--prompt", "the cat sat on", "--tokens", "9", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == "the cat sat on the mat.\n"


@pytest.mark.heavy
def test_json_and_seeds(trained, capsys):
    def sample(seed):
        arguments = ["--prompt", "the", "--tokens", "30", "--temperature", "1.5", "--seed", str(seed), "--json"]
        assert main(["generate", str(trained), *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    assert sample(1) == sample(1)
    assert sample(1)["text"] != sample(2)["text"]
    assert sample(1)["prompt"] == "the"


@pytest.mark.heavy
def test_padding_rows_of_the_vocabulary_are_never_drawn(trained):
    loaded = load_model(trained)
    drawn = set(generate(loaded, [loaded.tokenizer.eot], 200, temperature=50.0, top_k=None, seed=0))
    assert max(drawn) < 257
    assert len(drawn) > 80


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    assert main(["generate", str(tmp_path), "--prompt", "x"]) == 2
    assert "no run here" in capsys.readouterr().err
