"""Balance: loads fall to even, and are counted once under recomputation, accumulation and over ranks."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters.own import HPS, batch, mine
from adapters.tiny import build
from torch import nn

from expertp.adapters.adapted import adapt
from expertp.adapters.balance import Balancing, selection_biases
from expertp.adapters.families import FAMILIES
from expertp.errors import InputError

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed: pip install -e '.[hf]'"
)
WITH_BIAS = [name for name, family in FAMILIES.items() if family.selection]


def loads(balance: Balancing) -> list[list[int]]:
    return [load.tolist() for load in balance.loads().values()]


def test_tokens_are_counted_in_training_only() -> None:
    model, fitted = mine()
    with fitted.balancing(model) as balance:
        model.eval()
        model(batch(0))
        with pytest.raises(InputError, match=r"blocks\.0\.router saw no token since the last step"):
            balance.loads()
        model.train()
        model(batch(0))
        assert [sum(load) for load in loads(balance)] == [8 * 16 * 2] * 2
        balance.clear()
        with pytest.raises(InputError, match="saw no token"):
            balance.step()
    model(batch(0))  # the hooks are gone
    with pytest.raises(InputError, match="saw no token"):
        balance.loads()


@pytest.fixture
def nothing_is_compiled() -> Iterator[None]:
    """Compiled code serves all models of a class, with the hooks of the first one."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.heavy
@pytest.mark.usefixtures("nothing_is_compiled")
def test_balancing_after_the_first_compiled_step_is_an_error_that_says_when_to_enter_it() -> None:
    model, fitted = mine()
    compiled = torch.compile(model, backend="eager")
    compiled(batch(0))
    with fitted.balancing(model) as balance:
        compiled(batch(0))
        with pytest.raises(InputError, match=r"with torch\.compile enter balancing before the first compiled step"):
            balance.step()


def test_accumulation_adds_up() -> None:
    model, fitted = mine()
    whole = batch(0, 8)
    with fitted.balancing(model) as balance:
        model(whole)
        at_once = loads(balance)
        balance.step()
        biases = [block.router.bias.clone() for block in model.blocks]
    model, fitted = mine()
    with fitted.balancing(model) as balance:
        for part in whole.split(2):
            model(part)
        assert loads(balance) == at_once
        balance.step()
    for block, bias in zip(model.blocks, biases, strict=True):
        assert torch.equal(block.router.bias, bias)
        assert bias.abs().max() > 0
        assert abs(float(bias.sum())) < 1e-6


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_does_not_count_again(reentrant: bool) -> None:
    """One micro-batch is recomputed and the other is not, so that counting twice would change the shares."""
    from torch.utils.checkpoint import checkpoint

    def found(recompute: bool) -> list[list[int]]:
        model, fitted = mine()
        with fitted.balancing(model) as balance:
            x = model.embed(batch(0)[:, :-1])
            for block in model.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant) if recompute else block(x)
            x.sum().backward()
            model(batch(1)).backward()
            return loads(balance)

    assert found(recompute=True) == found(recompute=False)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of dynamo
@pytest.mark.usefixtures("nothing_is_compiled")
def test_hooks_work_in_a_compiled_model() -> None:
    model, fitted = mine()
    with fitted.balancing(model) as balance:
        model(batch(0))
        expected = loads(balance)
        balance.clear()
        torch.compile(model, backend="eager")(batch(0))
        assert loads(balance) == expected


@pytest.mark.heavy
@needs_transformers
def test_the_loads_of_a_deepseek_become_even() -> None:
    """E16, K4, on tokens with a skewed distribution: max |Load - kappa| from above 0.5 to below 0.2."""
    shape = {"n_routed_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": 2}
    model = build("deepseek_v3", **shape)
    fitted = adapt(model, build("deepseek_v3", "meta", **shape), HPS.replace(lr=5e-4))
    frequencies = (1 / torch.arange(1, 65)).expand(24, -1)

    def deviations(balanced: bool) -> list[float]:
        fitted.init_(model)
        optimizer = torch.optim.AdamW(fitted.param_groups(model))
        found = []
        with fitted.balancing(model, "proportional" if balanced else "none") as balance:
            for step in range(60):
                tokens = frequencies.multinomial(17, True, generator=torch.Generator().manual_seed(step))
                model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                balance.step()
                found.append(balance.max_deviation)
        return found

    without, with_biases = deviations(balanced=False), deviations(balanced=True)
    assert min(without[-10:]) > 0.5
    assert max(with_biases[-10:]) < 0.2


@needs_transformers
@pytest.mark.parametrize("model_type", WITH_BIAS)
def test_biases_are_float32_in_a_bfloat16_model_and_move_its_routing(model_type: str) -> None:
    model = build(model_type).to(torch.bfloat16)
    fitted = adapt(model, build(model_type, "meta"), HPS)
    fitted.init_(model)
    tokens = batch(0) % 60 + 3

    def step(balance: Balancing) -> list[list[int]]:
        model(input_ids=tokens, use_cache=False)
        found = loads(balance)
        balance.step()
        return found

    with fitted.balancing(model) as balance:
        first = step(balance)
        for _ in range(20):
            last = step(balance)
    assert last != first
    assert _spread(last) < _spread(first)
    biases = [getattr(*place) for place in selection_biases(model, fitted.family.rows).values()]
    assert {bias.dtype for bias in biases} == {torch.float32}
    assert not any(bias.requires_grad for bias in biases)


def _spread(found: list[list[int]]) -> int:
    return max(max(load) - min(load) for load in found)


@needs_transformers
def test_a_family_without_selection_bias_says_so() -> None:
    model = build("mixtral", "meta")
    with pytest.raises(InputError, match="'mixtral' has no selection bias; balance it with its auxiliary loss"):
        adapt(model, build("mixtral", "meta"), HPS).balancing(model)


def test_a_router_that_returns_no_experts_is_named() -> None:
    model, fitted = mine()

    def only_gates(module: nn.Module, inputs: Any, output: Any) -> Any:
        return output[0], output[1].float()

    with fitted.balancing(model):
        handles = [block.router.register_forward_hook(only_gates, prepend=True) for block in model.blocks]
        with pytest.raises(InputError, match=r"blocks\.0\.router returns 0 tensors of integers"):
            model(batch(0))
        for handle in handles:
            handle.remove()


RANK = """
import sys, torch, torch.distributed as dist
from adapters.own import batch, mine
rank, place = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
model, fitted = mine()
with fitted.balancing(model) as balance:
    for step in range(3):
        model(batch(step)[4 * rank : 4 * rank + 4])
        balance.step()
if rank == 0:
    print([block.router.bias.tolist() for block in model.blocks])
dist.destroy_process_group()
"""


@pytest.mark.heavy
def test_two_ranks_are_one(tmp_path: Path) -> None:
    model, fitted = mine()
    with fitted.balancing(model) as balance:
        for step in range(3):
            model(batch(step))
            balance.step()
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    tests = str(Path(__file__).parents[1])
    workers = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(tmp_path / "rendezvous")],
            env={"PYTHONPATH": tests, "OMP_NUM_THREADS": "1", "PATH": ""},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    out, _ = workers[0].communicate(timeout=120)
    workers[1].communicate(timeout=120)
    assert [worker.returncode for worker in workers] == [0, 0]
    assert out.strip() == str([block.router.bias.tolist() for block in model.blocks])
