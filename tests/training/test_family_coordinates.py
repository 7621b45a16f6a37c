"""Coordinates of models of transformers: computed by hand, and the same folded or not."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hugging_face import hf_run, model_tree
from runs import write_tokens

from expertp.coordcheck.slopes import EXPECTED
from expertp.data import Dataset, open_dataset
from expertp.training.loop import TrainingLoop

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")
TOKENS = torch.arange(32).view(2, 16)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset(str(write_tokens(tmp_path_factory.mktemp("tokens"), 4000, 1000)))


def rms(values: torch.Tensor) -> float:
    return values.square().mean().sqrt().item()


def deeper(dataset: Dataset, model_type: str) -> TrainingLoop:
    """A model whose block outputs have the multiplier 1/2, folded into its tensors."""
    run = hf_run(
        Path(dataset.path), model_type, model=model_tree(model_type, num_hidden_layers=4), base=model_tree(model_type)
    )
    return TrainingLoop(run, dataset, "cpu")


@torch.no_grad()
def seen(loop: TrainingLoop) -> dict[str, torch.Tensor]:
    """Return activations of the first MoE layer, and the stream."""
    found: dict[str, torch.Tensor] = {}
    layer = loop.model.module.model.layers[0]
    with_input = {"o": layer.self_attn.o_proj, "router": layer.mlp.gate, "head": loop.model.module.lm_head}
    handles = [
        module.register_forward_pre_hook(lambda _, args, name=name: found.update({name: args[0].flatten(0, -2)}))
        for name, module in with_input.items()
    ]
    handles.append(layer.mlp.gate.register_forward_hook(lambda _m, _a, output: found.update(chosen=output[2])))
    hidden = loop.model.module(input_ids=TOKENS, output_hidden_states=True).hidden_states
    for handle in handles:
        handle.remove()
    return {**found, "embedded": hidden[0].flatten(0, 1)}


def test_sizes_are_those_of_a_computation_by_hand(dataset: Dataset) -> None:
    run = hf_run(Path(dataset.path), "mixtral", model=model_tree("mixtral", num_hidden_layers=1))
    loop = TrainingLoop(run, dataset, "cpu")
    probe, before = loop.model.probe(TOKENS), seen(loop)
    first = {name: value.clone() for name, value in loop.weights().items()}
    for _ in range(3):
        loop.step()
    now, last, sizes = seen(loop), loop.weights(), probe.measure()
    name = "model.layers.0.mlp.gate.weight"
    assert sizes["router", "size"] == pytest.approx(rms(now["router"] @ last[name].T), rel=1e-5)
    assert sizes["router", "effective"] == pytest.approx(rms(now["router"] @ (last[name] - first[name]).T), rel=1e-4)
    change = now["router"] - before["router"]
    assert sizes["router", "propagated"] == pytest.approx(rms(change @ first[name].T), rel=1e-4)
    assert sizes["embedding", "effective"] == pytest.approx(rms(now["embedded"] - before["embedded"]), rel=1e-4)
    up, down = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"
    parts: dict[str, list[torch.Tensor]] = {"up": [], "size": [], "effective": [], "propagated": []}
    for expert in range(4):
        token = (now["chosen"] == expert).any(-1)
        hidden, hidden_0 = (
            F.silu(gate) * value
            for gate, value in (
                (x[token] @ weights[up][expert].T).chunk(2, -1)
                for x, weights in ((now["router"], last), (before["router"], first))
            )
        )
        parts["up"].append(now["router"][token] @ last[up][expert].T)
        parts["size"].append(hidden @ last[down][expert].T)
        parts["effective"].append(hidden @ (last[down][expert] - first[down][expert]).T)
        parts["propagated"].append((hidden - hidden_0) @ first[down][expert].T)
    assert sizes["expert_up", "size"] == pytest.approx(rms(torch.cat(parts["up"])), rel=1e-5)
    for quantity in ("size", "effective", "propagated"):
        assert sizes["expert_down", quantity] == pytest.approx(rms(torch.cat(parts[quantity])), rel=1e-4)


@pytest.mark.parametrize("model_type", ["olmoe", "deepseek_v3"])
def test_sizes_are_those_before_folding(dataset: Dataset, model_type: str) -> None:
    """The output of a folded tensor is divided by its fold; all measured modules have an expected slope."""
    loop = deeper(dataset, model_type)
    sizes = loop.model.probe(TOKENS).measure()
    module = loop.model.module
    outputs: list[torch.Tensor] = []
    handles = [
        layer.self_attn.o_proj.register_forward_hook(lambda _m, _a, output: outputs.append(output.detach()))
        for layer in module.model.layers
    ]
    module(input_ids=TOKENS)
    for handle in handles:
        handle.remove()
    assert sizes["attn_o", "size"] == pytest.approx(2 * rms(torch.stack(outputs)), rel=1e-5)
    assert {name for name, _ in sizes} <= set(EXPECTED)
    latent = {name for name, _ in sizes if name.startswith(("latent", "shared", "dense"))}
    assert bool(latent) == (model_type == "deepseek_v3")


def test_a_probed_model_trains_as_one_that_nobody_looks_at(dataset: Dataset) -> None:
    plain, watched = deeper(dataset, "deepseek_v3"), deeper(dataset, "deepseek_v3")
    probe = watched.model.probe(TOKENS)
    for _ in range(2):
        probe.measure()
        assert watched.step().loss == plain.step().loss
    assert all(torch.equal(value, plain.weights()[name]) for name, value in watched.weights().items())
