"""Roles of parameters: a text with one row per name pattern, which reads like a state dict.

    model.layers.#.self_attn.q_proj.weight   | attn_qk       | Q N
    model.layers.#.mlp.gate.weight           | router        | E N
    model.layers.#.mlp.experts.down_proj     | expert_down + | E N H

`#` stands for a number; the first one counts layers. A role is a parameter group of the rules. `+` marks tensors whose
output is added to the residual stream, where the multiplier of block outputs belongs. A line that starts with `# ` is a
comment, and so is everything after ` # `.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from expertp.adapters.axes import Axis
from expertp.errors import InputError, did_you_mean, shown
from expertp.rules import EXPERTP

SELECTION_BIAS = "expert_bias"
# Parts of names that wrappers add: torch.compile, DDP, FSDP and activation checkpointing.
WRAPPERS = frozenset({"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
PEFT_PREFIX = "base_model.model."
UNKNOWN = "?"
# What a person who fills in a text must know of the facts before its rows.
GATE = "sum of a token's gates: mean (a constant), all (part of a softmax over all experts), sum (not normalized)"
SELECTION = "what the selection bias is added to: sigmoid, softmax or logit"
FILL_IN = f"fill in the '{UNKNOWN}' of the roles text and pass it as roles=..., or to expertp plan with --roles-file"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class UnknownParametersError(InputError):
    """Parameters without a role. `roles` is a text with a row for every parameter, to be filled in."""

    def __init__(self, message: str, roles: str) -> None:
        super().__init__(message)
        self.roles = roles
        self.add_note(roles)


@dataclass(frozen=True)
class RoleRow:
    """One row: a name pattern, the parameter group of the rules, whether it writes to the stream, and the axes."""

    pattern: str
    role: str
    writes: bool
    axes: tuple[Axis, ...]

    def __str__(self) -> str:
        return f"{self.pattern} | {self.role}{' +' if self.writes else ''} | {' '.join(map(str, self.axes))}"


def parse_rows(text: str) -> tuple[RoleRow, ...]:
    """Read rows.

    >>> [row] = parse_rows("layers.#.down.weight | expert_down + | E N H")
    >>> row.role, row.writes, str(row)
    ('expert_down', True, 'layers.#.down.weight | expert_down + | E N H')
    """
    rows = tuple(_row(line) for line in map(_without_comment, text.splitlines()) if line)
    twice = [pattern for pattern, times in Counter(row.pattern for row in rows).items() if times > 1]
    if twice:
        raise InputError(f"roles: {twice[0]} appears twice; keep one of its rows")
    return rows


def _without_comment(line: str) -> str:
    return "" if line.lstrip().startswith("# ") or line.strip() == "#" else line.partition(" # ")[0].strip()


def _row(line: str) -> RoleRow:
    cells = [cell.strip() for cell in line.split("|")]
    if len(cells) != 3 or not all(cells):
        raise InputError(f"roles: {shown(line)} is not a row; write NAME | ROLE | AXES")
    pattern, role, axes = cells
    role, plus, rest = role.partition("+")
    role = role.strip()
    if UNKNOWN in (role, *axes.split()):
        raise InputError(f"roles: {pattern} has no role or no axes yet; replace the '{UNKNOWN}' in its row")
    if role not in EXPERTP.rows or rest:
        raise InputError(f"roles: {pattern} has the unknown role {shown(role)}; {did_you_mean(role, EXPERTP.rows)}")
    return RoleRow(pattern, role, bool(plus), tuple(map(Axis.parse, axes.split())))


def clean_name(name: str) -> str:
    """Return the name of a parameter without the parts that wrappers add.

    >>> clean_name("_orig_mod.module.model.layers.0._checkpoint_wrapped_module.mlp.gate.weight")
    'model.layers.0.mlp.gate.weight'
    """
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def match_rows(
    shapes: Mapping[str, tuple[int, ...]], rows: Sequence[RoleRow], family: str, to_fill_in: str | None = None
) -> dict[str, RoleRow]:
    """Return the row of every parameter; parameters without a row are an error that carries a text to fill in.

    Args:
        shapes: shapes by clean name.
        rows: the rows of the family.
        family: its name, for the message.
        to_fill_in: the text; None: that of these shapes and rows.
    """
    peft = next((name for name in shapes if name.startswith(PEFT_PREFIX)), None)
    if peft is not None:
        raise InputError(
            f"{peft}: the model has PEFT adapters, for which there are no rules; adapt the model without them"
        )
    by_pattern = {row.pattern: row for row in rows}
    found = {name: row for name in shapes if (row := _row_of(name, by_pattern)) is not None}
    unknown = [name for name in shapes if name not in found]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UnknownParametersError(
            f"{unknown[0]}{more}: no role in family '{family}'; {FILL_IN}",
            roles_text(shapes, rows) if to_fill_in is None else to_fill_in,
        )
    return found


def roles_text(
    shapes: Mapping[str, tuple[int, ...]],
    rows: Sequence[RoleRow] = (),
    facts: Mapping[str, str] | None = None,
    buffers: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """Return the facts and a row per name pattern of a model, with `?` where something is not known.

    Args:
        shapes: shapes of parameters by clean name.
        rows: known rows.
        facts: known facts; None: none is known.
        buffers: shapes of buffers. Those without a row follow as comments, because one may be a selection bias.

    >>> print(roles_text({"layers.0.w": (8, 4), "layers.1.w": (8, 4)}, facts={"gate": "sum"}))
    gate: sum
    layers.#.w | ? | ? ?  # 8 x 4
    """
    by_pattern = {row.pattern: row for row in rows}
    lines: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, shape in (*shapes.items(), *(buffers or {}).items()):
        pattern, size = pattern_of(name), f"  # {' x '.join(map(str, shape))}"
        row = _row_of(name, by_pattern)
        if row is None and name not in shapes:
            others[pattern] = f"# {pattern} | {SELECTION_BIAS} | {_axes_of_bias(shape)}{size}"
        else:
            unknown = f"{pattern} | {UNKNOWN} | {' '.join(UNKNOWN for _ in shape)}"
            lines.setdefault(pattern, f"{row or unknown}{size}")
    known = [f"gate: {UNKNOWN}  # {GATE}"] if facts is None else [f"{key}: {value}" for key, value in facts.items()]
    if others and "selection" not in (facts or {}):
        known += [
            "# If a buffer is a selection bias, remove the '# ' before its row below and before this fact:",
            f"# selection: {UNKNOWN}  # {SELECTION}",
        ]
    return "\n".join((*known, *lines.values(), *others.values()))


def _axes_of_bias(shape: tuple[int, ...]) -> str:
    """Return the axes of a selection bias: experts, and perhaps axes of size 1."""
    return " ".join("1" if size == 1 else "E" for size in shape)


def pattern_of(name: str) -> str:
    """Return a name with `#` for its numbers.

    >>> pattern_of("model.layers.12.mlp.experts.3.w1.weight")
    'model.layers.#.mlp.experts.#.w1.weight'
    """
    return _NUMBER.sub("#", name)


def count_layers(names: Iterable[str]) -> int:
    """Return the number of layers: distinct first numbers in names.

    >>> count_layers(["embed.weight", "layers.0.mlp.experts.5", "layers.1.norm"])
    2
    """
    return len({match[0] for match in map(_NUMBER.search, names) if match})


def _row_of(name: str, by_pattern: Mapping[str, RoleRow]) -> RoleRow | None:
    return by_pattern.get(name) or by_pattern.get(pattern_of(name))
