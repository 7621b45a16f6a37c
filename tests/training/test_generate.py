import json
import os
import shutil

import pytest
import torch
from runs import tiny_run

from expertp.cli.main import main
from expertp.data import PrepareOptions, prepare
from expertp.errors import DamagedError
from expertp.training.generate import Sampling, generate, generate_text, load_model, next_logits
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
    logits = torch.cat([next_logits(loaded, torch.tensor([ids[: n + 1]])) for n in range(24)])
    assert torch.nn.functional.cross_entropy(logits, torch.tensor(targets)).item() == pytest.approx(
        loss.item(), rel=1e-5
    )


def test_bfloat16_logits_are_those_of_a_bfloat16_forward_pass(trained):
    """Weights are rounded once, and not by autocast in every pass; nothing else changes."""
    loaded = load_model(trained)._replace(dtype="bfloat16")
    ids = loaded.tokenizer.encode(TEXT)[:24]
    with torch.no_grad(), autocast("bfloat16", "cpu"):
        hidden = loaded.model.module.hidden(torch.tensor([ids])).h_BSN
        expected = loaded.model.module.logits(hidden[:, -1:])[:, 0]
    loaded.model.prepare_generation("bfloat16")
    assert loaded.model.module.blocks[0].ffn.experts.up.dtype == torch.bfloat16
    assert loaded.model.module.blocks[0].ffn.router.weight.dtype == torch.float32
    assert torch.equal(next_logits(loaded, torch.tensor([ids])), expected)


def test_a_run_is_sampled_in_the_type_it_was_trained_in(trained):
    loaded = load_model(trained)
    ids = torch.tensor([loaded.tokenizer.encode("the cat")])
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
    wild = Sampling(temperature=50.0, top_k=None)
    drawn = {token for (token,) in generate(loaded, [loaded.tokenizer.eot], 200, wild)}
    assert max(drawn) < 257
    assert len(drawn) > 80


def test_a_directory_without_a_run_is_refused(tmp_path, capsys):
    assert main(["generate", str(tmp_path), "--prompt", "x"]) == 2
    assert "no run here" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", [{"vocab_size": 2**31}, {"n_layer": 2**40}, {"n_exp": 8}, {"n_embd": 16}])
def test_a_record_of_another_model_is_damaged_and_no_such_model_is_built(trained, tmp_path, sizes):
    shutil.copytree(trained, tmp_path / "run")
    record = json.loads((tmp_path / "run/run.json").read_text())
    record["run"]["model"] |= sizes
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    with pytest.raises(DamagedError, match=r"run.json: damaged \(its model is not that of the weights\)"):
        load_model(tmp_path / "run")


def test_a_text_beyond_the_context_is_that_of_the_last_tokens_and_the_command_says_so(trained, capsys):
    """Up to the context with the cache, then without: each token is the most likely one after the window before it."""
    loaded = load_model(trained)
    loaded.model.module.double()
    loaded = loaded._replace(dtype="float64")
    prompt = loaded.tokenizer.encode("the cat sat")
    ids = [*prompt, *(token for (token,) in generate(loaded, prompt, 40, Sampling(temperature=0)))]
    for end in range(len(prompt), len(ids)):
        logits = next_logits(loaded, torch.tensor([ids[:end][-24:]]))[0, :257]
        assert ids[end] == logits.argmax()
    said = "the last 24 tokens are computed afresh for every token"
    for tokens, beyond in ((14, False), (15, True)):
        assert main(["generate", str(trained), "--prompt", "the cat sat", "--tokens", str(tokens)]) == 0
        assert (said in capsys.readouterr().err) == beyond


def test_logits_within_the_context_are_those_without_the_cache(trained):
    loaded = load_model(trained)
    loaded.model.module.double()
    loaded = loaded._replace(dtype="float64")
    cache = loaded.model.empty_cache()
    ids = torch.tensor([loaded.tokenizer.encode(TEXT)[:24]])
    for end in range(5, 25):
        cached, afresh = next_logits(loaded, ids[:, :end], cache), next_logits(loaded, ids[:, :end])
        assert (cached - afresh).abs().max() <= 1e-10
    assert cache.length == 24


def test_a_sample_depends_on_its_number_and_the_seed_only(trained):
    loaded = load_model(trained)

    def texts(samples, seed):
        sampling = Sampling(temperature=5, seed=seed)
        pieces = list(generate_text(loaded, "the", 30, sampling, samples))
        return ["".join(parts) for parts in zip(*pieces, strict=True)]

    three = texts(3, seed=1)
    assert len(set(three)) == 3
    assert texts(1, seed=1) == three[:1]
    assert not set(texts(3, seed=2)) & set(three)


def test_a_sample_that_has_ended_says_nothing_more(trained, monkeypatch):
    loaded = load_model(trained)
    eot = loaded.tokenizer.eot
    steps = iter([(65, 66), (eot, 67), (68, 195), (69, eot), (70, 71)])
    monkeypatch.setattr("expertp.training.generate.generate", lambda *_: steps)
    assert list(generate_text(loaded, "the", 5, samples=2)) == [
        *[("A", "B"), ("", "C"), ("", ""), ("", "")],
        ("", "\ufffd"),  # half a character
    ]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1, top_k=None), [0.5, 0.25, 0.125, 0.125]),
        (Sampling(temperature=0, top_k=None), [1, 0, 0, 0]),
        (Sampling(temperature=0.5, top_k=None), [8 / 11, 2 / 11, 0.5 / 11, 0.5 / 11]),
        (Sampling(temperature=1, top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(temperature=1, top_k=None, top_p=0.49), [1, 0, 0, 0]),
        (Sampling(temperature=1, top_k=None, top_p=0.51), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(temperature=1, top_k=None, top_p=0.8), [4 / 7, 2 / 7, 1 / 7, 0]),
        (Sampling(temperature=1, top_k=2, top_p=0.6), [1, 0, 0, 0]),  # of the two, the first has 2/3
        (Sampling(temperature=1, top_k=3), [4 / 7, 2 / 7, 1 / 7, 0]),  # the last two are as likely
        (Sampling(temperature=1e-300, top_k=None, top_p=0.9), [1, 0, 0, 0]),
    ],
)
def test_probabilities(sampling, expected):
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64).log() + 3
    assert sampling.probabilities(logits).tolist() == pytest.approx(expected, abs=1e-12)


def test_exactly_top_k_ids_are_kept_whatever_is_tied():
    logits = torch.tensor([1.0, 2.0, 2.0, 1.0, 2.0, 1.0])
    kept = [Sampling(top_k=k).probabilities(logits).nonzero().flatten().tolist() for k in range(1, 8)]
    assert kept[:4] == [[1], [1, 2], [1, 2, 4], [0, 1, 2, 4]]
    assert [len(ids) for ids in kept] == [1, 2, 3, 4, 5, 6, 6]
    assert Sampling(top_k=3).probabilities(torch.zeros(1000)).nonzero().flatten().tolist() == [0, 1, 2]


def test_prompts_of_a_file(trained, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("the cat sat on\n\nthe dog sat on\r\n")
    (tmp_path / "prompts.jsonl").write_text('"the cat sat on"\n{"prompt": "a\\nb"}\n')
    arguments = [str(trained), "--tokens", "4", "--temperature", "0"]
    assert main(["generate", *arguments, str(tmp_path / "prompts.txt")]) == 0
    assert capsys.readouterr().out == "--- prompt 1 of 2\nthe cat sat on the\n--- prompt 2 of 2\nthe dog sat on the\n"
    assert main(["generate", *arguments, str(tmp_path / "prompts.jsonl"), "--samples", "2", "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["prompt"], each["sample"]) for each in printed] == [
        (p, n) for p in ("the cat sat on", "a\nb") for n in (1, 2)
    ]
    assert printed[0]["text"] == printed[1]["text"] == " the"
    assert main(["generate", *arguments, "--prompt", "the dog sat on", "--samples", "2"]) == 0
    assert capsys.readouterr().out == "--- sample 1 of 2\nthe dog sat on the\n--- sample 2 of 2\nthe dog sat on the\n"


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"),
    [
        ("p.txt", b"\n \n", [], "has no prompts; give a text file"),
        ("p.txt", b"\xff", [], "not UTF-8 at byte 0; give a text file"),
        ("p.jsonl", b'"a"\n{"text": "x"}\n', [], "line 2: is no prompt; give a JSON string"),
        ("p.jsonl", b"[1]", [], "line 1: is no prompt"),
        ("p.jsonl", b'"\\ud800"', [], "line 1: is no prompt"),
        ("p.txt", b"a", ["--prompt", "b"], "--prompt does not go with a file of prompts"),
        ("p.txt", b"a", ["--top-p", "0"], "--top-p 0 is not above 0 and at most 1"),
        ("p.txt", b"a", ["--top-p", "nan"], "--top-p nan is not"),
        ("p.txt", b"a", ["--samples", "0"], "0 is not a positive integer"),
    ],
)
def test_bad_prompts_are_one_line(trained, tmp_path, capsys, name, content, arguments, message):
    (tmp_path / name).write_bytes(content)
    assert main(["generate", str(trained), str(tmp_path / name), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_pipe_in_the_place_of_prompts_is_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "p.txt")
    assert main(["generate", str(tmp_path), str(tmp_path / "p.txt")]) == 2
    assert "p.txt: damaged (not a regular file); give a text file" in capsys.readouterr().err
