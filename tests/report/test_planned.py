import json

import pytest
import torch

from expertp import BaseHPs, ModelSpec
from expertp.model.transformer import MoETransformer, group_of
from expertp.plan import plan
from expertp.report.planned import plan_json, plan_table, torch_code
from expertp.training.optim import param_groups

BASE = ModelSpec(n_embd=32, d_head=16, n_layer=2, n_exp=4, n_act=1, vocab_size=64, context=16)


@pytest.fixture
def made():
    target = BASE.replace(n_embd=64, n_layer=4, n_exp=8, n_act=2)
    return plan(BASE, target, BaseHPs(lr=0.01, weight_decay=0.1, constants="paper"))


def test_the_torch_code_builds_the_same_groups_as_the_library(made):
    names: dict = {}
    exec(compile(torch_code(made, "Target."), "plan.py", "exec"), names)
    torch.manual_seed(0)
    model = MoETransformer(made.target, made.forward)
    theirs = {group["name"]: group for group in names["param_groups"](model, group_of)}
    for ours in param_groups(model, made):
        other = theirs.pop(ours["name"])
        assert [id(each) for each in other["params"]] == [id(each) for each in ours["params"]]
        assert {key: other[key] for key in ("lr", "weight_decay", "eps", "betas")} == {
            key: ours[key] for key in ("lr", "weight_decay", "eps", "betas")
        }
    assert theirs == {}
    torch.optim.AdamW(names["param_groups"](model, group_of))


def test_the_torch_code_sets_the_init(made):
    names: dict = {}
    exec(compile(torch_code(made, "Target."), "plan.py", "exec"), names)
    model = MoETransformer(made.target, made.forward)
    names["init_parameters"](model, group_of)
    for name, parameter in model.named_parameters():
        std = made.groups[group_of(name)].init_std
        if std is None:
            assert parameter.unique().tolist() == [0.0 if name.endswith("bias") else 1.0]
        elif parameter.numel() > 1000:
            assert parameter.std().item() == pytest.approx(std, rel=0.1)


def test_the_json_is_that_of_the_plan(made):
    assert json.loads(plan_json(made)) == json.loads(json.dumps(made.to_dict()))


def test_the_table_has_a_row_per_group_and_its_factors(made):
    rows = {row[0]: row[1:] for row in plan_table(made).rows}
    assert set(rows) == {name for name, group in made.groups.items() if group.lr is not None}
    assert rows["expert_up"][-1] == "0.5"  # lr by 1/m_N
    assert rows["norm"][0] == "–"
