"""A family: the roles of the parameters of one kind of model, and the facts that names and shapes cannot tell."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from expertp.adapters.roles import SELECTION_BIAS, UNKNOWN, RoleRow, parse_rows
from expertp.errors import InputError, did_you_mean, shown

# What the weights of a token's experts sum to: "mean": to a constant; "all": they are a softmax over all experts, about
# n_act/n_exp; "sum": they are not normalized, about n_act.
Gate = Literal["mean", "all", "sum"]
# What the selection bias is added to.
Selection = Literal["sigmoid", "softmax", "logit"]
# Facts that may stand before the rows of a roles text -> their values.
FACTS = {"gate": get_args(Gate), "selection": get_args(Selection), "norms": ("gain", "gain - 1")}


@dataclass(frozen=True)
class NativeMultiplier:
    """A configuration key that multiplies (power 1) or divides (power -1) in the forward pass."""

    key: str
    place: Literal["residual", "logits"]
    power: Literal[1, -1]


@dataclass(frozen=True)
class Family:
    """Roles of the parameters of one `model_type`, and what names and shapes cannot tell.

    Args:
        model_type: the name in transformers, or that of a module of a user.
        rows: name pattern, role and axes of every parameter.
        gate: what the weights of a token's experts sum to, given the configuration.
        selection: what the selection bias is added to; None: the family has none.
        auxiliary_loss: whether its code can add an auxiliary loss that balances the loads.
        gain_minus_one: whether norms store their gain minus 1.
        native: multipliers that the configuration has.
        experts_are_fixed: whether n_act cannot grow.
        no_run: why the training loop of expertp cannot train its models; empty if it can.
        why_not: a reason for which a configuration has no rules; None if it has.
    """

    model_type: str
    rows: tuple[RoleRow, ...]
    gate: Callable[[Any], Gate] = lambda config: "mean"  # noqa: ARG005
    selection: Selection | None = None
    auxiliary_loss: bool = True
    gain_minus_one: bool = False
    native: tuple[NativeMultiplier, ...] = ()
    experts_are_fixed: bool = False
    no_run: str = ""
    why_not: Callable[[Any], str | None] = lambda config: None  # noqa: ARG005


def parse_family(text: str, name: str) -> Family:
    """Read the roles text of a module of a user: facts, then rows.

    `gate` is required: what the weights of a token's experts sum to (`mean`, `all` or `sum`). `selection` says what the
    selection bias is added to (`sigmoid`, `softmax` or `logit`); `norms: gain - 1` that norms store gain - 1.

    >>> family = parse_family("gate: sum\\nembed.weight | embedding | V N", "mine")
    >>> family.gate(None), family.selection, family.rows[0].role
    ('sum', None, 'embedding')
    """
    facts: dict[str, str] = {}
    rows = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and "|" not in line and not line.lstrip().startswith("#"):
            facts[key.strip()] = value.partition(" # ")[0].strip()
        else:
            rows.append(line)
    _check_facts(facts)
    parsed = parse_rows("\n".join(rows))
    has_bias = any(row.role == SELECTION_BIAS for row in parsed)
    if has_bias != ("selection" in facts):
        raise InputError(
            "roles: a selection bias needs a row with the role expert_bias and a line such as 'selection: sigmoid'; "
            "give both or neither"
        )
    gate: Any = facts["gate"]
    selection: Any = facts.get("selection")
    return Family(
        model_type=name,
        rows=parsed,
        gate=lambda config: gate,  # noqa: ARG005
        selection=selection,
        gain_minus_one=facts.get("norms") == "gain - 1",
    )


def _check_facts(facts: dict[str, str]) -> None:
    for key, value in facts.items():
        if key not in FACTS:
            raise InputError(f"roles: {shown(key)} is not a fact; {did_you_mean(key, FACTS)}")
        if value == UNKNOWN:
            raise InputError(f"roles: {key} is not known yet; replace its '{UNKNOWN}' by {' or '.join(FACTS[key])}")
        if value not in FACTS[key]:
            raise InputError(f"roles: {key}: {shown(value)} is unknown; write {' or '.join(FACTS[key])}")
    if "gate" not in facts:
        raise InputError("roles: the line 'gate: ...' is missing; write gate: mean, gate: all or gate: sum")
