"""How the ranks of a run share its model: the only module that knows the mesh of processes.

Every tensor is spread over all ranks (FSDP2: `fully_shard`). A block is gathered before it computes, and freed
afterwards. With `parallel.replicas`, every copy of the model is spread over a part of the ranks. With
`parallel.experts`, a rank gathers its share of the experts only, and rows travel to the ranks of their experts. Ranks
compute other micro-batches, and gradients are sums over ranks: the objective is divided by the number of micro-batches
of all ranks.
"""

import warnings
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.utils import get_total_norm

from expertp.errors import InputError
from expertp.model.exchange import exchanged
from expertp.model.experts import Experts
from expertp.model.sharded import own
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
    if ranks.size % (parallel.replicas * parallel.experts):
        product = " times ".join(f"parallel.{name}={size}" for name, size in parallel.to_dict().items() if size > 1)
        raise InputError(
            f"{product} does not divide the {processes} of the run; set another value, or another number of processes "
            "(torchrun --nproc-per-node, srun -n, or `processes` of a study)"
        )
    if ranks.is_alone:
        return
    if not isinstance(run.model, ModelSpec):
        raise InputError(
            f"a model of transformers is trained by one process, not by {ranks.size}; start one process, or train the "
            "reference model"
        )
    if parallel.experts > 1 and (not run.model.is_moe or run.model.n_exp % parallel.experts):
        has = f"model.n_exp={run.model.n_exp}" if run.model.is_moe else "a dense model without experts"
        raise InputError(f"parallel.experts={parallel.experts} cannot share {has} evenly; set a divisor, or 1")
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
    policy = ROUNDED if dtype == "bfloat16" else UNCHANGED
    mesh = _mesh(ranks, device, parallel.replicas)
    of_experts = _mesh(ranks, device, parallel.replicas, parallel.experts) if parallel.experts > 1 else None
    for block in model.blocks:
        if of_experts is not None:
            _spread_experts(block, of_experts, policy)
        if policy is ROUNDED:
            _shard([each for each in _products(block) if not isinstance(each, FSDPModule)], mesh, policy)
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


@torch.no_grad()
def clip_gradients_(parameters: Iterable[nn.Parameter], max_norm: float, parallel: ParallelSpec, ranks: Ranks) -> None:
    """Clip the gradients of all ranks to a global norm, as torch's `clip_grad_norm_` does in one process."""
    gradients = [own(parameter.grad) for parameter in parameters if parameter.grad is not None]
    norm = get_total_norm(gradients)
    if not ranks.is_alone:
        squares = ranks.sum(norm.double().square().reshape(1).cpu())
        norm = (squares / parallel.replicas).sqrt().to(norm)[0]
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)


def _mesh(ranks: Ranks, device: str, replicas: int, experts: int = 1) -> DeviceMesh:
    """Return the ranks as a mesh of replicas x shards x experts; a single replica or share of experts is left out.

    The ranks that exchange rows are neighbours, so they are on one machine if it has enough of them.
    """
    shape = {"replicas": replicas, "shards": ranks.size // (replicas * experts), "experts": experts}
    shape = {name: size for name, size in shape.items() if size > 1 or name == "shards"}
    return init_device_mesh(device, tuple(shape.values()), mesh_dim_names=tuple(shape))


def _spread_experts(block: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    """Give every rank of the mesh's dimension `experts` its share of the experts, and spread it over the others."""
    over = mesh["experts"]
    for experts in (module for module in block.modules() if isinstance(module, Experts)):
        for name, parameter in list(experts.named_parameters()):
            setattr(experts, name, nn.Parameter(distribute_tensor(parameter, over, [Shard(0)])))
        experts.function = exchanged(experts.function, over.get_group())
        _shard(experts, mesh[tuple(name for name in mesh.mesh_dim_names or () if name != "experts")], policy)


def _shard(module: nn.Module | list[nn.Module], mesh: DeviceMesh, policy: MixedPrecisionPolicy = UNCHANGED) -> None:
    parts = mesh.size(-1)

    def dimension(parameter: nn.Parameter) -> Shard | None:
        """Spread few experts over many ranks by their second dimension; torch divides it evenly only."""
        experts = len(own(parameter))
        few = parameter.ndim == 3 and experts < parts
        return Shard(1) if few and parameter.shape[1] % parts == 0 else None

    fully_shard(module, mesh=mesh, mp_policy=policy, shard_placement_fn=dimension)


def _products(block: nn.Module) -> list[nn.Module]:
    """Return the modules whose weights are factors of matrix products in the compute dtype; the router is none."""
    return [module for module in block.modules() if isinstance(module, nn.Linear | Experts)]
