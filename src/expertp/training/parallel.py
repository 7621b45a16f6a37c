"""How the ranks of a run share its model: the only module that knows the mesh of processes.

Every tensor is spread over all ranks (FSDP2: `fully_shard`). A block is gathered before it computes, and freed
afterwards. With `parallel.replicas`, every copy of the model is spread over a part of the ranks. Ranks compute other
micro-batches, and gradients are sums over ranks: the objective is divided by the number of micro-batches of all ranks.
"""

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from expertp.errors import InputError
from expertp.model.experts import Experts
from expertp.model.transformer import MoETransformer
from expertp.spec import Dtype, ModelSpec, ParallelSpec, RunSpec
from expertp.training.ranks import Ranks
from expertp.util.text import plural

# Weights of matrix products are rounded before they are gathered, not after: the same bits, half the traffic, and no
# rounded copy of a gathered weight is kept for the backward pass. Gradients are summed in float32.
ROUNDED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


UNCHANGED = MixedPrecisionPolicy()


def check_layout(run: RunSpec, ranks: Ranks) -> None:
    """Raise `InputError` if the ranks cannot share the model or the batch of a run."""
    parallel, processes = run.parallel, plural(ranks.size, "process", "processes")
    if parallel.experts > 1:
        raise InputError(f"parallel.experts={parallel.experts}: experts cannot be spread yet; set parallel.experts=1")
    if ranks.size % parallel.replicas:
        raise InputError(
            f"parallel.replicas={parallel.replicas} does not divide the {processes} of the run; set another value, or "
            "start another number of processes with torchrun --nproc-per-node or srun -n"
        )
    if ranks.is_alone:
        return
    if not isinstance(run.model, ModelSpec):
        raise InputError(
            f"a model of transformers is trained by one process, not by {ranks.size}; start one process, or train the "
            "reference model"
        )
    if run.train.micro_batch is None and run.train.balance == "aux_loss":
        raise InputError(
            "train.balance=aux_loss is computed per micro-batch, so the run would depend on the number of processes; "
            f"set train.micro_batch, such as {max(1, run.sequences // ranks.size)}"
        )
    micro_batches = run.sequences // (run.train.micro_batch or 1)
    if micro_batches % ranks.size:
        what = f"micro-batches of {plural(run.train.micro_batch, 'sequence')}" if run.train.micro_batch else "sequences"
        raise InputError(
            f"{processes} cannot share a batch of {micro_batches} {what} evenly; change train.batch_tokens, "
            "train.micro_batch or the number of processes"
        )


def micro_batch(run: RunSpec, ranks: Ranks) -> int:
    """Return the sequences of a forward pass: without `train.micro_batch`, the part of the batch that a rank has."""
    return run.train.micro_batch or run.sequences // ranks.size


def own_rows(run: RunSpec, ranks: Ranks) -> slice:
    """Return the sequences of a batch that this rank computes.

    >>> from expertp.spec import BaseHPs, TrainSpec
    >>> model, hps = ModelSpec(n_embd=64, n_exp=1, n_act=1, n_layer=1, context=8), BaseHPs(lr=0.1)
    >>> run = RunSpec(base=model, model=model, hps=hps, train=TrainSpec(data="d", steps=1, batch_tokens=64))
    >>> own_rows(run, Ranks(rank=1, size=4))
    slice(2, 4, None)
    """
    count = run.sequences // ranks.size
    return slice(ranks.rank * count, (ranks.rank + 1) * count)


def shard_(model: MoETransformer, parallel: ParallelSpec, ranks: Ranks, device: str, dtype: Dtype) -> None:
    """Spread the parameters of a model without values (on the meta device) over the ranks.

    Args:
        model: the model; its blocks are gathered one by one.
        parallel: the layout.
        ranks: the processes.
        device: "cpu" or "cuda".
        dtype: compute dtype; under bfloat16, weights of matrix products are rounded when they are gathered.
    """
    if ranks.is_alone:
        return
    # Outputs of linear layers are views. FSDP warns of in-place operations on them, which the model does not have.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
    mesh = _mesh(parallel, ranks, device)
    for block in model.blocks:
        if dtype == "bfloat16":
            _shard(_products(block), mesh, ROUNDED)
        _shard(block, mesh)
    _shard(model, mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # the objective is divided, not the gradient
            module.set_force_sum_reduction_for_comms(True)  # gloo has no division in a sum


def free_gathered_(model: nn.Module) -> None:
    """Free what a forward pass without a backward pass has left gathered."""
    if isinstance(model, FSDPModule):
        model.reshard()


def own_part(tensor: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """Return the part of a tensor that this rank holds, which shares its memory, and the place of the part."""
    if not isinstance(tensor, DTensor):
        return tensor, tuple(slice(0, size) for size in tensor.shape)
    (chunk,) = tensor.__create_chunk_list__()
    place = tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
    return tensor.to_local(), place


def clip_gradients_(parameters: Iterable[nn.Parameter], max_norm: float) -> None:
    """Clip the gradients of all ranks to a global norm."""
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm([parameter.grad for parameter in with_gradient if parameter.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    clip_grads_with_norm_(with_gradient, max_norm, norm)


def _mesh(parallel: ParallelSpec, ranks: Ranks, device: str) -> DeviceMesh:
    """Return the mesh over which tensors are spread: all ranks, or copies x the ranks of a copy."""
    if parallel.replicas == 1:
        return init_device_mesh(device, (ranks.size,), mesh_dim_names=("shards",))
    shape = (parallel.replicas, ranks.size // parallel.replicas)
    return init_device_mesh(device, shape, mesh_dim_names=("replicas", "shards"))


def _shard(module: nn.Module | list[nn.Module], mesh: DeviceMesh, policy: MixedPrecisionPolicy = UNCHANGED) -> None:
    parts = mesh.size(-1)

    def dimension(parameter: nn.Parameter) -> Shard | None:
        """Spread few experts over many ranks by their second dimension; torch divides it evenly only."""
        few = parameter.ndim == 3 and parameter.shape[0] < parts
        return Shard(1) if few and parameter.shape[1] % parts == 0 else None

    fully_shard(module, mesh=mesh, mp_policy=policy, shard_placement_fn=dimension)


def _products(block: nn.Module) -> list[nn.Module]:
    """Return the modules whose weights are factors of matrix products in the compute dtype; the router is none."""
    return [module for module in block.modules() if isinstance(module, nn.Linear | Experts)]
