"""From a torch module to its description: roles by name, sizes from shapes, n_act from the router."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from expertp.adapters.axes import Shaped, sizes_of
from expertp.adapters.description import Description, Sizes, Tensor
from expertp.adapters.families import FAMILIES
from expertp.adapters.family import Family, parse_family
from expertp.adapters.keys import refuse
from expertp.adapters.roles import (
    FILL_IN,
    SELECTION_BIAS,
    RoleRow,
    UnknownParametersError,
    clean_name,
    count_layers,
    match_rows,
    pattern_of,
    roles_text,
)
from expertp.errors import InputError, shown

# Attributes of a router, or of a module around it, that hold the number of experts per token.
N_ACT_ATTRIBUTES = ("top_k", "n_act", "num_experts_per_tok")
# Attributes of attention modules that depend on the size of a head.
HEAD_ATTRIBUTES = ("head_dim", "scaling")
# For a family with a table, whose rows a user cannot correct.
WRONG_SIZES = "correct the sizes in its configuration, such as a hidden_size that the number of heads does not divide"


def family_of(model: nn.Module) -> Family:
    """Return the family of a model of transformers, by the `model_type` of its configuration."""
    model_type = str(getattr(getattr(model, "config", None), "model_type", ""))
    refuse(model_type)
    if model_type in FAMILIES:
        return FAMILIES[model_type]
    what = f"model_type {shown(model_type)}" if model_type else "a module without model_type"
    raise UnknownParametersError(
        f"{what} is not a known family; {FILL_IN}",
        roles_of(model),
    )


def roles_of(model: nn.Module, family: Family | None = None) -> str:
    """Return the roles text of a model, with `?` for what its family does not know; None: nothing is known."""
    shapes = shapes_of(model)
    buffers = {
        clean_name(f"{name}.{own}"): tuple(buffer.shape)
        for name, module in model.named_modules()
        for own, buffer in module.named_buffers(recurse=False)
        if buffer.is_floating_point() and buffer.dim() and own not in module._non_persistent_buffers_set
    }
    if family is None:
        return roles_text(shapes, buffers=buffers)
    facts: dict[str, str] = {"gate": family.gate(getattr(model, "config", None))}
    if family.selection is not None:
        facts["selection"] = family.selection
    if family.gain_minus_one:
        facts["norms"] = "gain - 1"
    patterns = {row.pattern for row in family.rows}
    known = {name: shape for name, shape in buffers.items() if pattern_of(name) in patterns}
    return roles_text(shapes, family.rows, facts, known)


def family_from(text: str, model: nn.Module) -> Family:
    """Return the family that a roles text describes; of a known family, what the text cannot say stays."""
    read = parse_family(text, type(model).__name__)
    known = FAMILIES.get(str(getattr(getattr(model, "config", None), "model_type", "")))
    if known is None:
        return read
    return replace(known, rows=read.rows, gate=read.gate, selection=read.selection, gain_minus_one=read.gain_minus_one)


def describe(model: nn.Module, family: Family, n_act: int | None = None) -> Description:
    """Return the description of a model, which may be on the meta device.

    Args:
        model: a model of transformers or a module of a user; wrappers such as DDP do not matter.
        family: its family.
        n_act: experts per token; None: an attribute of the router has it.
    """
    config = getattr(model, "config", None)
    if why_not := family.why_not(config):
        raise InputError(f"model_type '{family.model_type}': {why_not}, for which there is no rule")
    shapes = shapes_of(model)
    rows = match_rows(shapes, family.rows, family.model_type, roles_of(model, family))
    _check_layout(model, rows)
    remedy = WRONG_SIZES if family is FAMILIES.get(family.model_type) else "correct its row"
    axes = sizes_of([Shaped(name, shapes[name], row.axes) for name, row in rows.items()], remedy)
    for symbol, what in (("N", "embedding"), ("E", "router")):
        if symbol not in axes:
            raise InputError(f"no parameter has the axis {symbol}; give the {what} its role and axes")
    return Description(
        family=family,
        gate=family.gate(config),
        sizes=Sizes(axes, count_layers(rows), n_act or _n_act(model, rows)),
        tensors=tuple(Tensor(name, row, shapes[name]) for name, row in rows.items() if row.role != SELECTION_BIAS),
        heads=frozenset(_heads(model)),
        config=_plain(config),
    )


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters by clean name; tied parameters appear once."""
    return {clean_name(name): tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _n_act(model: nn.Module, rows: Mapping[str, RoleRow]) -> int:
    """Return the experts per token, from the modules that have a router's weight or from modules around them."""
    modules = {clean_name(name): module for name, module in model.named_modules()}
    found = {name: _n_act_around(name, modules) for name, row in rows.items() if row.role == "router"}
    if None in found.values() or not found:
        raise InputError(
            f"no module around a router has an attribute {' or '.join(N_ACT_ATTRIBUTES)}; pass n_act and base_n_act"
        )
    (first, n_act), *others = found.items()
    for name, other in others:
        if other != n_act:
            raise InputError(
                f"{first} has {n_act} experts per token but {name} has {other}; the rules need the same in all layers"
            )
    assert n_act is not None
    return n_act


def _n_act_around(name: str, modules: Mapping[str, nn.Module]) -> int | None:
    """Return the experts per token of the nearest module around a parameter that has them."""
    place = name
    while place:
        place = place.rpartition(".")[0]
        for attribute in N_ACT_ATTRIBUTES:
            value = getattr(modules.get(place), attribute, None)
            if isinstance(value, int):
                return value
    return None


def _heads(model: nn.Module) -> Iterator[tuple[str, float]]:
    """Yield the sizes and scales of attention heads."""
    for module in model.modules():
        for attribute in HEAD_ATTRIBUTES:
            value = getattr(module, attribute, None)
            if isinstance(value, int | float):
                yield attribute, float(value)


def _check_layout(model: nn.Module, rows: Mapping[str, RoleRow]) -> None:
    """Compare the layout of experts with what their module says: shapes of square experts cannot tell."""
    modules = {clean_name(name): module for name, module in model.named_modules()}
    for name, row in rows.items():
        if row.role != "expert_down" or len(row.axes) != 3:
            continue
        says = getattr(modules.get(name.rpartition(".")[0]), "is_transposed", None)
        if says is not None and bool(says) != (str(row.axes[-1]) == "N"):
            raise InputError(
                f"{name} has the axes [{', '.join(map(str, row.axes))}] in its row, but its module says "
                f"is_transposed={says}: the layout is mirrored; correct the row"
            )


def _plain(config: Any) -> dict[str, Any]:
    """Return a configuration as plain values; empty for a module without one."""
    plain: dict[str, Any] = config.to_dict() if hasattr(config, "to_dict") else {}
    return plain
