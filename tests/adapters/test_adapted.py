"""From settings to torch: init, parameter groups, clipping, files, and verification in wrappers."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters.own import ROLES, Mine
from torch import nn

from expertp.adapters.adapted import Adapted, adapt
from expertp.adapters.family import parse_family
from expertp.adapters.verify import fingerprint
from expertp.errors import InputError
from expertp.spec import BaseHPs

HPS = BaseHPs(lr=0.01, init_std=0.1, adam_eps=1e-8, weight_decay=0.1)


def fitted(roles: Any = ROLES, **sizes: int) -> tuple[Mine, Adapted]:
    model = Mine(**{"width": 64, "depth": 4, "n_exp": 8, "top_k": 4, "hidden": 24, **sizes})
    return model, adapt(model, Mine(), HPS, roles=roles)


def tokens() -> torch.Tensor:
    return torch.randint(0, 64, (4, 17), generator=torch.Generator().manual_seed(0))


def test_a_module_of_a_user_gets_the_plan() -> None:
    _, mine = fitted()
    plans = {tensor.name: tensor for tensor in mine.fit.tensors}
    down = plans["blocks.3.down"]  # m_N 2, m_L 2, m_K 2, m_a 1/2
    assert (down.fold, down.lr, down.init_std) == pytest.approx((1 / 4, HPS.lr / 4, 0.1 * 2**-0.5 * 2 / 4))
    assert plans["final.weight"].start == 0.5
    assert "blocks.0.router.bias" not in plans
    assert mine.fit.bias_lr == HPS.bias_lr


def test_roles_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "roles.txt").write_text(ROLES)
    assert fitted(tmp_path / "roles.txt")[1].fit == fitted()[1].fit


def test_the_text_of_the_error_is_a_roles_text_when_filled_in() -> None:
    """The selection bias is a buffer; rows of it and its fact are comments at first."""
    with pytest.raises(
        InputError, match=r"a module without model_type is not a known family; fill in the '\?'"
    ) as caught:
        adapt(Mine(), Mine(), HPS)
    known = {row.pattern: str(row) for row in parse_family(ROLES, "Mine").rows}
    lines = []
    for line in caught.value.roles.splitlines():
        row = line.removeprefix("# ")
        lines.append(known.pop(row.split(" |")[0], row if row.startswith("selection") else line))
    assert not known
    text = "\n".join(lines).replace("gate: ?", "gate: sum").replace("selection: ?", "selection: sigmoid")
    ours, theirs = fitted(text)[1], fitted()[1]
    assert ours.fit == theirs.fit
    assert ours.family.selection == "sigmoid"


def test_the_name_of_a_file_must_be_a_path(tmp_path: Path) -> None:
    for name, make in (("roles.txt", False), ("roles", True)):
        if make:
            (tmp_path / name).write_text(ROLES)
        text = str(tmp_path / name)
        with pytest.raises(InputError, match="is the name of a file, not a text; pass Path"):
            fitted(text)
    with pytest.raises(InputError, match=r"the line 'gate: \.\.\.' is missing"):
        fitted("")


def test_a_pipe_in_the_place_of_roles_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "roles.txt")
    with pytest.raises(InputError, match=r"roles\.txt: damaged \(not a regular file\); give a text with one row"):
        fitted(tmp_path / "roles.txt")


def test_a_router_without_n_act_needs_it_as_an_argument() -> None:
    small, large = Mine(), Mine(n_exp=8, top_k=4)
    for model in (small, large):
        for block in model.blocks:
            block.router.k = block.router.top_k
            del block.router.top_k
    with pytest.raises(InputError, match="pass n_act and base_n_act"):
        adapt(large, small, HPS, roles=ROLES)
    assert adapt(large, small, HPS, roles=ROLES, n_act=4, base_n_act=2).fit.forward.moe_output == 0.5


def test_init_follows_the_plan_and_depends_on_seed_and_name_only() -> None:
    model, mine = fitted()
    mine.init_(model, seed=3)
    values = dict(model.named_parameters())
    for tensor in mine.fit.tensors:
        value = values[tensor.name]
        if tensor.init_std == 0:
            assert (value == tensor.start).all()
        else:
            assert float(value.detach().std()) == pytest.approx(tensor.init_std, rel=0.1)
    deeper, other = fitted(depth=6)
    other.init_(deeper, seed=3)
    ours, theirs = values["blocks.0.up"], deeper.blocks[0].up
    stds = [next(t.init_std for t in each.fit.tensors if t.name == "blocks.0.up") for each in (mine, other)]
    torch.testing.assert_close(ours / stds[0], theirs / stds[1])
    mine.init_(model, seed=4)
    assert not torch.equal(ours / stds[0], theirs / stds[1])


def test_groups_hold_every_parameter_once_and_no_selection_bias() -> None:
    model, mine = fitted()
    groups = mine.param_groups(model)
    names = [name for group in groups for name in group["param_names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert len({group["name"] for group in groups}) == len(groups)
    assert all(group["lr"] == group["initial_lr"] for group in groups)


def test_the_clip_norm_of_the_base_is_that_of_torch() -> None:
    model = Mine()
    base = adapt(model, Mine(), HPS, roles=ROLES)
    base.init_(model)
    optimizer = torch.optim.AdamW(base.param_groups(model))
    model(tokens()).backward()
    saved = [parameter.grad.clone() for parameter in model.parameters()]
    ours = base.clip_grad_norm_(optimizer, 0.1)
    clipped = [parameter.grad.clone() for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), saved, strict=True):
        parameter.grad.copy_(gradient)
    theirs = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    torch.testing.assert_close(ours, theirs)
    for parameter, gradient in zip(model.parameters(), clipped, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert ours > 0.1
    with pytest.raises(InputError, match="max_norm=0 is not positive"):
        base.clip_grad_norm_(optimizer, 0.0)


@pytest.mark.parametrize("group", [{}, {"param_names": ["elsewhere"]}])
def test_clipping_needs_the_groups_of_the_plan(group: dict[str, Any]) -> None:
    model, mine = fitted()
    mine.init_(model)
    model(tokens()).backward()
    optimizer = torch.optim.AdamW([{"params": [model.embed.weight], **group}])
    with pytest.raises(InputError, match=r"a group that is not of this plan; make the optimizer with param_groups"):
        mine.clip_grad_norm_(optimizer, 1.0)


def test_verify_accepts_what_was_made_and_saved(tmp_path: Path) -> None:
    model, mine = fitted()
    mine.init_(model)
    optimizer = torch.optim.AdamW(mine.param_groups(model))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    model(tokens()).backward()
    optimizer.step()
    schedule.step()
    mine.save(tmp_path / "expertp.json", model)
    mine.verify(model, optimizer, tmp_path / "expertp.json")
    assert json.loads((tmp_path / "expertp.json").read_text())["family"] == "Mine"


def test_verify_finds_another_plan_a_lost_tensor_and_changed_weights(tmp_path: Path) -> None:
    model, mine = fitted()
    mine.init_(model)
    mine.save(tmp_path / "expertp.json", model)
    changed = replace(mine, fit=replace(mine.fit, tensors=tuple(replace(t, lr=2 * t.lr) for t in mine.fit.tensors)))
    optimizer = torch.optim.AdamW(changed.param_groups(model))
    with pytest.raises(InputError, match=r"embed\.weight has initial_lr=0\.02 in the optimizer but 0\.01 in the plan"):
        mine.verify(model, optimizer)
    with pytest.raises(InputError, match=r"embed\.weight was planned with lr=0\.01, now with 0\.02; the plan changed"):
        changed.verify(model, saved=tmp_path / "expertp.json")
    groups = mine.param_groups(model)
    groups[0]["params"].pop()
    groups[0]["param_names"].pop()
    with pytest.raises(InputError, match=r"embed\.weight is in 0 parameter groups, not in one"):
        mine.verify(model, torch.optim.AdamW(groups[1:]))
    with torch.no_grad():
        model.blocks[1].down[0, 0, 0] += 1e-6
    with pytest.raises(InputError, match=r"blocks\.1\.down: the values are not those that were saved"):
        mine.verify(model, saved=tmp_path / "expertp.json")


def test_verify_finds_a_changed_selection_bias(tmp_path: Path) -> None:
    model, mine = fitted()
    mine.init_(model)
    mine.save(tmp_path / "expertp.json", model)
    model.blocks[0].router.bias += 1e-3
    with pytest.raises(InputError, match=r"blocks\.0\.router\.bias: the values are not those that were saved"):
        mine.verify(model, saved=tmp_path / "expertp.json")


@pytest.mark.parametrize("content", ["", "{}", '{"tensors": 3, "fingerprints": {}}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    model, mine = fitted()
    (tmp_path / "expertp.json").write_text(content)
    with pytest.raises(InputError, match=r"expertp\.json: damaged"):
        mine.verify(model, saved=tmp_path / "expertp.json")
    with pytest.raises(InputError, match=r"nothing\.json: no such file"):
        mine.verify(model, saved=tmp_path / "nothing.json")


def test_a_model_with_other_parameters_is_refused() -> None:
    _, mine = fitted()
    with pytest.raises(InputError, match="is planned but the model does not have it"):
        mine.verify(Mine(width=64))
    with pytest.raises(InputError, match=r"has the shape \[64, 32\], but \[64, 64\] in the plan"):
        mine.verify(Mine(depth=4, n_exp=8, top_k=4))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of dynamo
def test_wrappers_change_nothing(tmp_path: Path) -> None:
    """torch.compile, activation checkpointing, DDP and FSDP2 with one process."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def compiled(model: Mine) -> nn.Module:
        return torch.compile(model, backend="eager")

    def checkpointed(model: Mine) -> nn.Module:
        for place, block in enumerate(model.blocks):
            model.blocks[place] = checkpoint_wrapper(block)
        return model

    def sharded(model: Mine) -> nn.Module:
        mesh = init_device_mesh("cpu", (1,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        plain, mine = fitted()
        mine.init_(plain)
        mine.save(tmp_path / "expertp.json", plain)
        for wrap in (compiled, checkpointed, nn.parallel.DistributedDataParallel, sharded):
            model, _ = fitted()
            wrapped = wrap(model)
            again = adapt(wrapped, Mine(), HPS, roles=ROLES)
            assert again.fit.tensors == mine.fit.tensors, wrap
            again.init_(wrapped)  # after wrapping, and after sharding
            optimizer = torch.optim.AdamW(again.param_groups(wrapped))
            again.verify(wrapped, optimizer, tmp_path / "expertp.json")
            wrapped(tokens()).backward()
            assert again.clip_grad_norm_(optimizer, 1.0) > 0
    finally:
        torch.distributed.destroy_process_group()


def test_a_fingerprint_sees_parts_of_a_tensor_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as experts, or the halves of stacked gate and up projections, whose sizes are multiples of a chunk."""
    monkeypatch.setattr("expertp.adapters.verify.CHUNK", 16)
    experts = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(0))
    for other in (experts[[1, 0, 2, 3]], experts.roll(4, dims=1), experts.transpose(1, 2)):
        assert not fingerprint(experts).matches(fingerprint(other))
    assert fingerprint(experts).matches(fingerprint(experts.clone()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.Adam, "embedding has weight decay as an L2 loss; use AdamW"),
        (lambda groups: torch.optim.RMSprop(without(groups, "betas")), "embedding has no betas in the optimizer"),
        (
            lambda groups: torch.optim.AdamW([{**group, "betas": (0.5, 0.5)} for group in groups]),
            r"embedding has betas=\(0\.5, 0\.5\) in the optimizer; the plan is for AdamW with betas=\(0\.9, 0\.95\)",
        ),
        (
            lambda groups: torch.optim.AdamW([{**group, "lr": 1e-3} for group in groups]),
            r"\w+ has lr=0\.001, .* times its planned value, and embedding .*; let the schedule multiply the lr of "
            "every group by the same factor",
        ),
    ],
    ids=["L2 decay", "another optimizer", "other betas", "one lr for all groups"],
)
def test_verify_finds_an_optimizer_that_is_not_the_plans(
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer], message: str
) -> None:
    model, mine = fitted()
    mine.verify(model, torch.optim.AdamW(mine.param_groups(model)))
    with pytest.raises(InputError, match=message):
        mine.verify(model, make(mine.param_groups(model)))


def without(groups: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != key} for group in groups]


@pytest.mark.parametrize(
    "change", [{"bias_lr": 7.0}, {"betas": (0.9, 0.99)}, {"clip": 2.0}], ids=lambda each: next(iter(each))
)
def test_verify_finds_a_plan_that_changed_outside_of_tensors(tmp_path: Path, change: dict[str, Any]) -> None:
    model, mine = fitted()
    mine.init_(model)
    mine.save(tmp_path / "expertp.json", model)
    changed = adapt(model, Mine(), HPS.replace(**change), roles=ROLES)
    (name,) = change
    with pytest.raises(InputError, match=rf"planned with {name}=.*, now with .*; the plan changed"):
        changed.verify(model, saved=tmp_path / "expertp.json")


def test_the_callback_clips_to_the_norm_of_the_hyperparameters() -> None:
    model, _ = fitted()
    mine = adapt(model, Mine(), HPS.replace(clip=0.7), roles=ROLES)
    assert (mine.callback()._clip, mine.callback(clip=0.3)._clip) == (0.7, 0.3)


def test_a_zero_router_is_refused() -> None:
    with pytest.raises(InputError, match=r"gamma=\.inf starts routers at zero, .* use gamma=1"):
        adapt(Mine(), Mine(), HPS.replace(gamma=math.inf), roles=ROLES)
