"""Models of transformers: published sizes and hours, and what a forward pass keeps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from expertp.adapters.spec import HFModelSpec
from expertp.capacity.anatomy import anatomy
from expertp.capacity.devices import DEVICES
from expertp.capacity.estimate import estimate
from expertp.capacity.job import JobSpec, WorkSpec
from expertp.capacity.layout import Layout

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[hf]'")

CONFIGS = Path(__file__).parents[1] / "fixtures/hf"
CONTEXT = 32


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "total", "active"),
    [("mixtral-8x7b", 46.7, 12.9), ("olmoe-1b-7b", 6.9, 1.3), ("deepseek-v3", 671, 37)],
)
def test_totals_are_those_that_the_authors_published(name: str, total: float, active: float) -> None:
    job = JobSpec(model=HFModelSpec(hf=str(CONFIGS / f"{name}.json"), context=4096))
    found = anatomy(job)
    assert found.numel / 1e9 == pytest.approx(total, rel=0.005)
    assert job.model.counts().active / 1e9 == pytest.approx(active, rel=0.02)
    assert sum(block.count for block in found.blocks) == job.model.n_layer
    assert len(found.blocks) == (2 if name == "deepseek-v3" else 1)  # its first blocks are dense
    assert {weight.kind for weight in found.blocks[-1].weights} == {"matrix", "wide", "expert"}


@pytest.mark.heavy
def test_the_published_hours_of_deepseek_v3_imply_a_third_of_the_peak() -> None:
    """2.664M H800-hours for 14.8T tokens; with scores that are not halved for the causal mask it is more."""
    job = JobSpec(model=HFModelSpec(hf=str(CONFIGS / "deepseek-v3.json"), context=4096))
    found = estimate(job, Layout(512, experts=64), DEVICES["h800"], tokens=14_800_000_000_000)
    implied = found.implied(2.664e6)
    assert implied.without_scores == pytest.approx(0.343, abs=0.001)
    assert implied.efficiency == pytest.approx(0.439, abs=0.001)


def kept_bytes(model: HFModelSpec) -> int:
    """Return the bytes that a forward pass in float32 keeps beside weights."""
    from expertp.adapters.hub import training_config, with_weights

    built = with_weights(training_config(model.hf), 0, experts_implementation="grouped_mm").train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*built.parameters(), *built.buffers())}
    found: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        built(input_ids=torch.zeros(2, CONTEXT, dtype=torch.int64), use_cache=False)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize("model_type", ["olmoe", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_kept_bytes_are_within_a_tenth(model_type: str) -> None:
    from adapters.tiny import COMMON, TINY

    keys: dict[str, Any] = {**COMMON, **TINY[model_type], "model_type": model_type}
    shallow, deep = (HFModelSpec(hf={**keys, "num_hidden_layers": layers}, context=CONTEXT) for layers in (3, 4))
    measured = (kept_bytes(deep) - kept_bytes(shallow)) / (2 * CONTEXT)
    found = anatomy(JobSpec(model=deep, train=WorkSpec(dtype="float32")))
    assert not found.is_exact
    assert found.blocks[-1].kept == pytest.approx(measured, rel=0.1)
