"""The rules, against exponents written out once more by hand."""

import math
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expertp.errors import InputError
from expertp.plan import GROUPS, Group, Plan, plan
from expertp.rules import D_HEAD, EXPERTP, KV, ONE, RULE_SETS, E, L, Monomial, N, N_gamma, R, a
from expertp.spec import BaseHPs, ModelSpec

RULES = ("expertp", "sp", "mup", "completep", "fan_in_down", "no_depth", "no_mean", "no_alpha", "fan_in_stack")
EPS_RULES = ("consistent", "paper")
DIMENSIONS = ("width", "depth", "experts", "alpha")
HALF = Fraction(1, 2)


class Powers(NamedTuple):
    """Exponents of the four multipliers, in the order of DIMENSIONS, and of the rank of latent attention."""

    width: Fraction | int = 0
    depth: Fraction | int = 0
    experts: Fraction | int = 0
    alpha: Fraction | int = 0
    rank: Fraction | int = 0


class Expected(NamedTuple):
    """One row: exponents on init std, lr, weight decay and both columns of Adam eps; None where there is no scale."""

    init: Powers | None
    lr: Powers
    decay: Powers | None
    consistent: Powers | None
    paper: Powers | None


def hidden(consistent: Powers, paper: Powers) -> Expected:
    """A matrix whose fan-in is the width."""
    return Expected(Powers(-HALF), Powers(-1), Powers(1), consistent, paper)


def down(consistent: Powers) -> Expected:
    """A matrix whose fan-in is the width times the expert size."""
    return Expected(
        Powers(-HALF, alpha=-1), Powers(-1, alpha=-1), Powers(1, alpha=1), consistent, Powers(-1, -1, 0, -2)
    )


def vector(consistent: Powers, paper: Powers) -> Expected:
    """Norms and biases."""
    return Expected(None, Powers(), None, consistent, paper)


TABLE = Expected(Powers(), Powers(), Powers(), Powers(-1), Powers(-1))
ATTENTION = hidden(Powers(-1, -1), Powers(-1, -1))
EXPERTP_ROWS = {
    "embedding": TABLE,
    "unembedding": TABLE,
    "unembedding_bias": vector(Powers(), Powers()),
    "norm": vector(Powers(-1, -1), Powers()),
    "final_norm": vector(Powers(-1), Powers()),
    "attn_qk": ATTENTION,
    "attn_v": ATTENTION,
    "attn_o": ATTENTION,
    "qk_norm": vector(Powers(0, -1), Powers()),
    "attn_sink": vector(Powers(-1, -1), Powers(0, -1)),
    "latent_down": hidden(Powers(0, -1, rank=-1), Powers(0, -1, rank=-1)),
    "latent_norm": vector(Powers(0, -1, rank=-1), Powers()),
    "latent_up": Expected(Powers(rank=-HALF), Powers(rank=-1), Powers(rank=1), Powers(-1, -1), Powers(-1, -1)),
    "latent_bias": vector(Powers(0, -1, rank=-1), Powers(0, -1)),
    "linear_bias": vector(Powers(-1, -1), Powers(0, -1)),
    "attn_v_bias": vector(Powers(-1, -1), Powers(0, -1)),
    # init at gamma = 1; other gammas have their own test
    "router": Expected(Powers(-1), Powers(-1), Powers(1), Powers(0, -1, -1), Powers(-1, -1)),
    "router_bias": vector(Powers(0, -1, -1), Powers(0, -1)),
    "expert_bias": Expected(None, Powers(), None, None, None),
    "expert_up": hidden(Powers(-1, -1, -1, -1), Powers(-1, -1, 0, -1)),
    "expert_down": down(Powers(-1, -1, -1, 0)),
    "expert_up_bias": vector(Powers(-1, -1, -1, -1), Powers(0, -1)),
    "expert_down_bias": vector(Powers(-1, -1, -1, 0), Powers(0, -1)),
    "ffn_up": hidden(Powers(-1, -1, 0, -1), Powers(-1, -1, 0, -1)),
    "ffn_down": down(Powers(-1, -1)),
    "ffn_up_bias": vector(Powers(-1, -1, 0, -1), Powers(0, -1)),
    "shared_gate": Expected(Powers(-1), Powers(-1), Powers(1), Powers(0, -1), Powers(-1, -1)),
}
DOWN = ("expert_down", "ffn_down")
FAN_IN = Powers(-HALF, alpha=-HALF)


def only(row: Expected, *dimensions: str) -> Expected:
    """Keep the powers of some dimensions."""

    def kept(powers: Powers | None) -> Powers | None:
        return powers and Powers(**{name: getattr(powers, name) for name in dimensions})

    return Expected(*(kept(powers) for powers in row))


SP_ROWS = {name: only(row) for name, row in EXPERTP_ROWS.items()}
# 1/sqrt(2 L) is absolute, so relative to the base it is a power of depth.
SP_ROWS |= {name: SP_ROWS[name]._replace(init=Powers(depth=-HALF)) for name in ("attn_o", *DOWN)}
COMPLETEP_ROWS = {name: only(row, "width", "rank", "depth") for name, row in EXPERTP_ROWS.items()}
COMPLETEP_ROWS |= {
    name: Expected(FAN_IN, Powers(-1, alpha=-1), Powers(1, alpha=1), Powers(-1, -1), Powers(-1, -1)) for name in DOWN
}
ROWS = {
    "expertp": EXPERTP_ROWS,
    "sp": SP_ROWS,
    "mup": {name: only(row, "width", "rank") for name, row in EXPERTP_ROWS.items()},
    "completep": COMPLETEP_ROWS,
    "fan_in_down": EXPERTP_ROWS | {name: EXPERTP_ROWS[name]._replace(init=FAN_IN) for name in DOWN},
    "no_depth": EXPERTP_ROWS,
    "no_mean": EXPERTP_ROWS,
    "no_alpha": EXPERTP_ROWS
    | {name: EXPERTP_ROWS[name]._replace(init=Powers(-HALF), lr=Powers(-1), decay=Powers(1)) for name in DOWN},
    "fan_in_stack": EXPERTP_ROWS
    | {
        name: EXPERTP_ROWS[name]._replace(
            init=Powers(-HALF, alpha=-HALF, experts=-HALF),
            lr=Powers(-1, alpha=-1, experts=-1),
            decay=Powers(1, alpha=1, experts=1),
        )
        for name in ("expert_up", "expert_down")
    },
}

# 1/K is the architecture's: at fixed kappa, K grows with the experts.
EXPERTP_FORWARD = {"residual": Powers(depth=-1), "logits": Powers(-1), "moe_output": Powers(experts=-1)}
FORWARD = {
    "expertp": EXPERTP_FORWARD,
    "sp": EXPERTP_FORWARD | {"residual": Powers(), "logits": Powers()},
    "mup": EXPERTP_FORWARD | {"residual": Powers()},
    "completep": EXPERTP_FORWARD,
    "fan_in_down": EXPERTP_FORWARD,
    "no_depth": EXPERTP_FORWARD | {"residual": Powers()},
    "no_mean": EXPERTP_FORWARD | {"moe_output": Powers()},
    "no_alpha": EXPERTP_FORWARD,
    "fan_in_stack": EXPERTP_FORWARD,
}

alphas = st.sampled_from((0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 3.0, 4.0))
positive = st.floats(1e-6, 10.0)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[ModelSpec, ModelSpec]:
    """A base and a target of one architecture and sparsity."""
    dense = draw(st.booleans())
    kappa = draw(st.sampled_from((Fraction(1), HALF, Fraction(1, 4), Fraction(2, 3), Fraction(1, 12))))
    common = {
        "d_head": draw(st.sampled_from((8, 64))),
        "tied_embeddings": draw(st.booleans()),
        "linear_bias": draw(st.booleans()),
        "gate": draw(st.sampled_from(("sigmoid", "softmax"))),
        "ffn": "dense" if dense else "moe",
    }

    def model() -> ModelSpec:
        groups_of_experts = draw(st.integers(1, 9))
        experts = {
            "n_exp": groups_of_experts * kappa.denominator,
            "n_act": groups_of_experts * kappa.numerator,
        }
        return ModelSpec(
            n_embd=common["d_head"] * draw(st.integers(1, 24)),
            n_layer=draw(st.integers(1, 40)),
            alpha_ffn=draw(alphas),
            **({} if dense else experts),
            **common,
        )

    return model(), model()


def hyperparameters(**fixed: object) -> st.SearchStrategy[BaseHPs]:
    """Base hyperparameters with `fixed` fields; every number is positive, so that ratios exist."""
    free = {
        "lr": positive,
        "init_std": positive,
        "adam_eps": st.floats(1e-12, 1e-6),
        "weight_decay": positive,
        "bias_lr": positive,
        "constants": st.sampled_from(("ones", "paper", {"router_lr": 0.3, "mlp_up_init": 7.0})),
    }
    return st.builds(BaseHPs, **{**free, **{name: st.just(value) for name, value in fixed.items()}})


def doubled(model: ModelSpec, dimension: str) -> ModelSpec:
    """Double one dimension; experts at fixed kappa."""
    changed = {
        "width": {"n_embd": 2 * model.n_embd},
        "depth": {"n_layer": 2 * model.n_layer},
        "experts": {"n_exp": 2 * model.n_exp, "n_act": 2 * model.n_act},
        "alpha": {"alpha_ffn": 2 * model.alpha_ffn},
    }
    return ModelSpec(**{**model.model_dump(), **changed[dimension]})


def assert_scaled(after: float | None, before: float | None, powers: Powers | None, sizes: Powers, what: str) -> None:
    """Assert that a setting changed by the product of sizes to their powers; without powers it has no scale."""
    if powers is None:
        assert before in (None, 0.0), f"{what} is scale-free but {before}"
        assert after == before, what
        return
    factor = math.prod(size ** float(power) for size, power in zip(sizes, powers, strict=True))
    assert before
    assert after == pytest.approx(before * factor, rel=1e-12), what


def assert_plan_scaled(after: Plan, before: Plan, rules: str, eps_rule: str, sizes: Powers) -> None:
    for name in GROUPS:
        ours, theirs, expected = after.groups[name], before.groups[name], ROWS[rules][name]
        if theirs == Group():
            assert ours == Group(), f"{name} is absent"
            continue
        assert_scaled(ours.init_std, theirs.init_std, expected.init, sizes, f"init of {name}")
        assert_scaled(ours.lr, theirs.lr, expected.lr, sizes, f"lr of {name}")
        assert_scaled(ours.weight_decay, theirs.weight_decay, expected.decay, sizes, f"weight decay of {name}")
        assert_scaled(ours.adam_eps, theirs.adam_eps, getattr(expected, eps_rule), sizes, f"eps of {name}")
    forward = {**FORWARD[rules], "attention_scale": Powers()}
    if before.target.ffn == "dense":
        assert before.forward.moe_output is after.forward.moe_output is None
        del forward["moe_output"]
    for place, powers in forward.items():
        assert_scaled(getattr(after.forward, place), getattr(before.forward, place), powers, sizes, place)


@pytest.mark.heavy
@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("eps_rule", EPS_RULES)
@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=20)
@given(data=st.data(), models=pairs())
def test_doubling_a_dimension_changes_every_entry_by_its_power_of_two(
    rules: str, eps_rule: str, dimension: str, data: st.DataObject, models: tuple[ModelSpec, ModelSpec]
) -> None:
    base, target = models
    if dimension == "experts" and target.ffn == "dense":
        dimension = "width"
    hps = data.draw(hyperparameters(rules=rules, eps_rule=eps_rule))
    sizes = Powers(**{name: 2 if name == dimension else 1 for name in DIMENSIONS}, rank=1)
    assert_plan_scaled(plan(base, doubled(target, dimension), hps), plan(base, target, hps), rules, eps_rule, sizes)


@pytest.mark.heavy
@pytest.mark.parametrize("eps_rule", EPS_RULES)
@pytest.mark.parametrize("rules", RULES)
@given(data=st.data(), models=pairs())
def test_any_target_differs_from_the_base_by_powers_of_the_multipliers(
    rules: str, eps_rule: str, data: st.DataObject, models: tuple[ModelSpec, ModelSpec]
) -> None:
    base, target = models
    hps = data.draw(hyperparameters(rules=rules, eps_rule=eps_rule))
    sizes = Powers(
        target.n_embd / base.n_embd,
        target.n_layer / base.n_layer,
        target.n_exp / base.n_exp,
        target.alpha_ffn / base.alpha_ffn,
        rank=1,
    )
    assert_plan_scaled(plan(base, target, hps), plan(base, base, hps), rules, eps_rule, sizes)


@pytest.mark.parametrize("group", EXPERTP_ROWS)
@pytest.mark.parametrize("rules", RULES)
def test_the_table_itself_has_the_expected_exponents(rules: str, group: str) -> None:
    """Also for groups that the reference model does not have."""
    row, expected = RULE_SETS[rules].rows[group], ROWS[rules][group]
    if rules == "sp":  # the one absolute factor is depth's
        expected = expected._replace(init=expected.init and Powers())

    def powers(rule: Monomial | None) -> Powers | None:
        # At gamma = 1, m_N^gamma is m_N; with as many keys and values as queries, m_KV is m_N.
        width = rule and sum(rule.power_of(each) for each in (N, N_gamma, KV))
        return rule and Powers(width, *(rule.power_of(size) for size in (L, E, a, R)))

    assert powers(row.init) == expected.init
    assert powers(row.lr) == expected.lr
    assert powers(row.eps) == expected.consistent
    assert powers(row.eps_paper) == expected.paper
    assert row.decays == (expected.decay is not None)


@pytest.mark.parametrize("group", EXPERTP_ROWS)
def test_only_the_eps_of_values_depends_on_their_width(group: str) -> None:
    """With grouped queries, several query heads share the gradient of one value."""
    row = EXPERTP.rows[group]
    assert all(not rule.power_of(KV) for rule in (row.init, row.lr) if rule)
    assert (row.eps is not None and row.eps.power_of(KV) == -1) == (group in ("attn_v", "attn_v_bias"))


@pytest.mark.parametrize("rules", [*RULES, "native"])
def test_every_rule_set_covers_every_group(rules: str) -> None:
    assert set(RULE_SETS) == {*RULES, "native"}
    assert set(RULE_SETS[rules].rows) == set(EXPERTP_ROWS)
    assert set(GROUPS) <= set(EXPERTP_ROWS)


def test_native_rules_have_no_multiplier_and_are_of_other_families() -> None:
    rules = RULE_SETS["native"]
    assert all(row.lr == ONE and row.init in (ONE, None) and row.eps in (ONE, None) for row in rules.rows.values())
    assert set(vars(rules.forward).values()) == {ONE}
    with pytest.raises(InputError, match="native is the init of a model of transformers; use sp"):
        plan(model := ModelSpec(n_embd=64, n_layer=2, n_exp=4), model, BaseHPs(lr=0.01, rules="native"))


@pytest.mark.parametrize("group", EXPERTP_ROWS)
def test_every_group_says_where_it_comes_from(group: str) -> None:
    assert EXPERTP.rows[group].where


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Monomial(), "1"),
        (1 / N_gamma, "m_N^-gamma"),
        (a * N / L, "m_N m_L^-1 m_a"),
        (D_HEAD**-HALF, "d_head^-1/2"),
        (N * L / N, "m_L"),
    ],
)
def test_a_rule_is_written_as_in_the_paper(rule: Monomial, text: str) -> None:
    assert str(rule) == text


@given(st.integers(-3, 3), st.integers(-3, 3), st.floats(0.1, 10), st.floats(0.1, 10))
def test_rules_multiply_divide_and_drop_symbols(i: int, j: int, width: float, depth: float) -> None:
    values = {"m_N": width, "m_L": depth}
    rule = N**i * L**j
    assert rule(values) == pytest.approx(width**i * depth**j)
    assert (rule / N**i)(values) == pytest.approx(depth**j)
    assert (1 / rule)(values) == pytest.approx(1 / rule(values))
    assert rule.keep(N) == N**i * Monomial()
    assert (rule.power_of(N), rule.power_of(L), rule.power_of(E)) == (i, j, 0)
