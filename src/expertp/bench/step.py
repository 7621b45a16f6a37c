"""Compare a training step (forward, backward, optimizer, balance) across expert backends and with a dense model."""

from collections.abc import Callable

import torch

from expertp.bench.experts import Case, Shape, make_case
from expertp.bench.timing import interleaved
from expertp.model.balance import bias_update
from expertp.model.experts import BACKENDS, BackendName
from expertp.model.transformer import MoETransformer
from expertp.plan import plan
from expertp.spec import BaseHPs, Dtype, ModelSpec
from expertp.training.loop import autocast
from expertp.training.optim import adamw, init_parameters, param_groups

SHAPES = (Shape(16, 4, 1.0), Shape(64, 16, 0.25))
PEERS = ("loop", "grouped")


def compare_steps(
    shape: Shape,
    n_embd: int = 256,
    n_layer: int = 4,
    context: int = 256,
    tokens: int = 8192,
    vocab_size: int = 4096,
    dtype: Dtype = "float32",
    rounds: int = 3,
) -> Case:
    """Time a training step of one shape for all backends."""
    model = ModelSpec(
        n_embd=n_embd,
        n_layer=n_layer,
        n_exp=shape.n_exp,
        n_act=shape.n_act,
        alpha_ffn=shape.alpha_ffn,
        vocab_size=vocab_size,
        context=context,
    )
    contestants: dict[str, Callable[[], object]] = {
        name: training_step(model, name, tokens, dtype) for name in BACKENDS
    }
    contestants["dense"] = training_step(model.dense_twin(), "fused", tokens, dtype)
    return make_case(shape, n_embd, tokens, dtype, interleaved(contestants, rounds, warm_up=1), PEERS)


def training_step(spec: ModelSpec, backend: BackendName, tokens: int, dtype: Dtype = "float32") -> Callable[[], object]:
    """Return a function that takes one training step on random tokens."""
    planned = plan(spec, spec, BaseHPs(lr=0.01, constants="paper"))
    model = MoETransformer(spec, planned.forward, backend)
    init_parameters(model, planned, seed=0)
    optimizer = adamw(param_groups(model, planned))
    generator = torch.Generator().manual_seed(0)
    batch = torch.randint(0, spec.vocab_size, (tokens // spec.context, spec.context + 1), generator=generator)

    def run() -> None:
        with autocast(dtype, "cpu"):
            out = model(batch[:, :-1], batch[:, 1:])
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if spec.ffn == "moe":
            model.shift_biases(bias_update(out.load_LE, spec.n_act, 0.1, "proportional"))

    return run
