"""The roles text, and the facts before it."""

import pytest

from expertp.adapters.family import parse_family
from expertp.adapters.roles import (
    GATE,
    UnknownParametersError,
    clean_name,
    match_rows,
    parse_rows,
    roles_text,
)
from expertp.errors import InputError

ROWS = """
# a module with two tensors
embed.weight      | embedding     | V N   # tokens
layers.#.down     | expert_down + | E N H
"""


def test_rows_are_read_and_written() -> None:
    assert [str(row) for row in parse_rows(ROWS)] == [
        "embed.weight | embedding | V N",
        "layers.#.down | expert_down + | E N H",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embed.weight | embedding", "is not a row; write NAME | ROLE | AXES"),
        ("embed.weight | embeding | V N", "unknown role 'embeding'; did you mean 'embedding'"),
        ("embed.weight | ? | V N", "has no role or no axes yet"),
        ("embed.weight | embedding | ? ?", "has no role or no axes yet"),
        ("w | norm | N\nw | norm | N", "w appears twice"),
        ("w | norm | M", "unknown symbol 'M'"),
    ],
)
def test_a_bad_row_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("|", r"\|").replace("?", r"\?")):
        parse_rows(text)


def test_names_match_in_every_layer() -> None:
    shapes = {"embed.weight": (4, 2), "layers.0.down": (3, 2, 5), "layers.11.down": (3, 2, 5)}
    found = match_rows(shapes, parse_rows(ROWS), "mine")
    assert [row.role for row in found.values()] == ["embedding", "expert_down", "expert_down"]


def test_unknown_parameters_are_an_error_with_a_text_to_fill_in() -> None:
    shapes = {"embed.weight": (4, 2), "layers.0.extra": (7,), "layers.1.extra": (7,), "layers.0.down": (3, 2, 5)}
    with pytest.raises(
        UnknownParametersError, match=r"layers\.0\.extra and 1 more: no role in family 'mine'"
    ) as caught:
        match_rows(shapes, parse_rows(ROWS), "mine")
    assert caught.value.roles.splitlines() == [
        f"gate: ?  # {GATE}",
        "embed.weight | embedding | V N  # 4 x 2",
        "layers.#.extra | ? | ?  # 7",
        "layers.#.down | expert_down + | E N H  # 3 x 2 x 5",
    ]
    assert caught.value.__notes__ == [caught.value.roles]


def test_a_filled_text_is_a_roles_text() -> None:
    text = roles_text({"layers.0.extra": (7, 3)})
    with pytest.raises(InputError, match=r"roles: gate is not known yet; replace its '\?' by mean or all or sum"):
        parse_family(text, "mine")
    text = text.replace("gate: ?", "gate: all")
    with pytest.raises(InputError, match=r"layers\.#\.extra has no role or no axes yet"):
        parse_family(text, "mine")
    family = parse_family(text.replace("| ? | ? ?", "| norm | D N"), "mine")
    assert ([str(row) for row in family.rows], family.gate(None)) == (["layers.#.extra | norm | D N"], "all")


def test_buffers_of_a_text_to_fill_in_are_comments_until_one_is_a_selection_bias() -> None:
    buffers = {"layers.0.gate.bias": (1, 8), "layers.1.gate.bias": (1, 8), "scale": (16,)}
    text = (
        roles_text({"w": (4, 2)}, buffers=buffers).replace("gate: ?", "gate: sum").replace("| ? | ? ?", "| norm | D N")
    )
    assert text.splitlines()[-2:] == [
        "# layers.#.gate.bias | expert_bias | 1 E  # 1 x 8",
        "# scale | expert_bias | E  # 16",
    ]
    assert parse_family(text, "mine").selection is None
    filled = text.replace("# layers", "layers").replace("# selection: ?", "selection: softmax")
    family = parse_family(filled, "mine")
    assert ([row.role for row in family.rows], family.selection) == (["norm", "expert_bias"], "softmax")


def test_known_facts_and_rows_of_buffers_are_in_the_text() -> None:
    rows = parse_rows("layers.#.bias | expert_bias | E")
    text = roles_text({}, rows, {"gate": "mean", "selection": "sigmoid"}, {"layers.0.bias": (8,)})
    assert text.splitlines() == ["gate: mean", "selection: sigmoid", "layers.#.bias | expert_bias | E  # 8"]


def test_peft_is_refused() -> None:
    with pytest.raises(InputError, match="the model has PEFT adapters, for which there are no rules"):
        match_rows({"base_model.model.embed.weight": (4, 2)}, parse_rows(ROWS), "mine")


@pytest.mark.parametrize("wrapper", ["_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_wrappers_do_not_change_names(wrapper: str) -> None:
    assert clean_name(f"{wrapper}.layers.0.{wrapper}.mlp.weight") == "layers.0.mlp.weight"


def test_facts_come_before_rows() -> None:
    text = f"gate: all   # softmax\nselection: softmax\nnorms: gain - 1\n{ROWS}\nb | expert_bias | E"
    family = parse_family(text, "mine")
    assert (family.gate(None), family.selection, family.gain_minus_one) == ("all", "softmax", True)
    assert len(family.rows) == 3


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ("", "the line 'gate: ...' is missing"),
        ("gate: half", "gate: 'half' is unknown; write mean or all or sum"),
        ("gate: sum\nscale: 2", "'scale' is not a fact"),
        ("gate: sum\nselection: sigmoid", "a selection bias needs a row"),
    ],
)
def test_bad_facts_are_refused(facts: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_family(f"{facts}\n{ROWS}", "mine")
