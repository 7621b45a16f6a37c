"""Scaling rules: one literal table in the layout of the paper's Table 2, and the rule sets derived from it.

A rule is a monomial in multipliers relative to the base model, m_N = N/N0 (width), m_L = L/L0 (depth),
m_E = E/E0 (experts), m_a = a/a0 (expert size), m_KV (width of keys and values) and m_R (rank of latent attention); at
the base every rule is 1. In this file `N`, `L`, `E`, `a`, `KV` and `R` stand for these multipliers. m_a, m_KV and m_R
belong to a tensor: a model may have routed, shared and dense FFNs of different sizes. Forward multipliers may also use
absolute sizes of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from expertp.spec import EpsRule, RuleSetName


@dataclass(frozen=True)
class Monomial:
    """A product of powers of symbols, written as in the paper.

    >>> str(N ** Fraction(-1, 2) / a)
    'm_N^-1/2 m_a^-1'
    >>> (1 / (N * L))({"m_N": 2.0, "m_L": 4.0})
    0.125
    """

    powers: tuple[tuple[str, Fraction], ...] = ()

    def __mul__(self, other: Monomial) -> Monomial:
        powers = dict(self.powers)
        for symbol, power in other.powers:
            powers[symbol] = powers.get(symbol, Fraction(0)) + power
        return Monomial(tuple(sorted((symbol, power) for symbol, power in powers.items() if power)))

    def __pow__(self, exponent: Fraction | int) -> Monomial:
        return Monomial(tuple((symbol, power * exponent) for symbol, power in self.powers))

    def __truediv__(self, other: Monomial) -> Monomial:
        return self * other**-1

    def __rtruediv__(self, one: int) -> Monomial:
        assert one == 1, "rules have no constant factors"
        return self**-1

    def __call__(self, values: Mapping[str, float]) -> float:
        """Evaluate the product; `values` maps symbols to numbers."""
        product = 1.0
        for symbol, power in self.powers:
            # An integer exponent keeps powers of exact values exact.
            exponent = power.numerator if power.denominator == 1 else float(power)
            product *= values[symbol] ** exponent
        return product

    def __str__(self) -> str:
        if not self.powers:
            return "1"
        order = {symbol: place for place, symbol in enumerate(SYMBOLS)}
        terms = sorted(self.powers, key=lambda term: order[term[0]])
        return " ".join(self._term(symbol, power) for symbol, power in terms)

    @staticmethod
    def _term(symbol: str, power: Fraction) -> str:
        if power == 1:
            return symbol
        name, caret, exponent = symbol.partition("^")
        return f"{name}^-{exponent}" if caret and power == -1 else f"{symbol}^{power}"

    def keep(self, *factors: Monomial) -> Monomial:
        """Return the product without the symbols that are not in `factors`."""
        kept = {symbol for factor in factors for symbol, _ in factor.powers}
        return Monomial(tuple(term for term in self.powers if term[0] in kept))

    def power_of(self, factor: Monomial) -> Fraction:
        """Return the exponent of a one-symbol factor."""
        return dict(self.powers).get(factor.powers[0][0], Fraction(0))


def _symbol(name: str) -> Monomial:
    return Monomial(((name, Fraction(1)),))


ONE = Monomial()
N, L, E, a = _symbol("m_N"), _symbol("m_L"), _symbol("m_E"), _symbol("m_a")
KV, R = _symbol("m_KV"), _symbol("m_R")
N_gamma = _symbol("m_N^gamma")
# Absolute sizes of the target: part of the architecture, not 1 at the base.
DEPTH, TWO_DEPTH, D_HEAD, N_ACT = _symbol("L"), _symbol("(2L)"), _symbol("d_head"), _symbol("n_act")
SYMBOLS = ("m_N", "m_N^gamma", "m_KV", "m_R", "m_L", "m_E", "m_a", "L", "(2L)", "d_head", "n_act")
HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Row:
    """The rules of one parameter group.

    Args:
        init: factor on sigma; None if the tensor is not initialized with noise (see `start`).
        lr: factor on eta (on eta_bias for the expert bias). Weight decay gets the inverse factor, so that lr times
            weight decay does not depend on scale (paper, appendix C).
        eps: factor on Adam's eps that scales like the group's gradient entries; None: not an Adam parameter.
        eps_paper: factor on Adam's eps as printed in the paper.
        decays: whether weight decay applies.
        start: "noise", "zero", or "gain" (norms: gain 1, bias 0).
        where: the place in the paper that states the rule.
    """

    init: Monomial | None
    lr: Monomial
    eps: Monomial | None
    eps_paper: Monomial | None
    decays: bool = True
    start: str = "noise"
    where: str = ""

    def adam_eps(self, rule: EpsRule) -> Monomial | None:
        """Return the eps factor of the chosen column."""
        return self.eps if rule == "consistent" else self.eps_paper


@dataclass(frozen=True)
class ForwardRules:
    """Forward multipliers: of block outputs, logits, attention scores q.k, and the sum over active experts."""

    residual: Monomial
    logits: Monomial
    attention_scale: Monomial
    moe_output: Monomial


@dataclass(frozen=True)
class RuleSet:
    """One parameterization: a row per parameter group, and the forward multipliers.

    With `is_native`, the init of a tensor is that of its family's own code, for models of other families.
    """

    rows: Mapping[str, Row]
    forward: ForwardRules
    is_native: bool = False


def _vector(eps: Monomial, eps_paper: Monomial, where: str, start: str = "zero") -> Row:
    """Return the row of a norm or bias: constant lr, no weight decay."""
    return Row(None, ONE, eps, eps_paper, decays=False, start=start, where=where)


# fmt: off
EXPERTP = RuleSet(
    rows={
        #                        init std              lr           eps: consistent      eps: paper
        "embedding":         Row(ONE,                  ONE,         1 / N,               1 / N,                where="Tab. 2"),
        "unembedding":       Row(ONE,                  ONE,         1 / N,               1 / N,                where="Tab. 2"),
        "unembedding_bias": _vector(                                ONE,                 ONE,                  where="beyond the paper"),
        "norm":          _vector(                                   1 / (N * L),         ONE,                  where="Tab. 2, App. A", start="gain"),
        "final_norm":    _vector(                                   1 / N,               ONE,                  where="Tab. 2, App. A", start="gain"),
        "attn_qk":           Row(N ** -HALF,           1 / N,       1 / (N * L),         1 / (N * L),          where="Tab. 2"),
        "attn_v":            Row(N ** -HALF,           1 / N,       1 / (KV * L),        1 / (KV * L),         where="Tab. 2"),
        "attn_o":            Row(N ** -HALF,           1 / N,       1 / (N * L),         1 / (N * L),          where="Tab. 2"),
        "qk_norm":       _vector(                                   1 / L,               ONE,                  where="beyond the paper", start="gain"),
        "attn_sink":     _vector(                                   1 / (N * L),         1 / L,                where="beyond the paper"),
        "latent_down":       Row(N ** -HALF,           1 / N,       1 / (R * L),         1 / (R * L),          where="beyond the paper"),
        "latent_norm":   _vector(                                   1 / (R * L),         ONE,                  where="beyond the paper", start="gain"),
        "latent_up":         Row(R ** -HALF,           1 / R,       1 / (N * L),         1 / (N * L),          where="beyond the paper"),
        "latent_bias":   _vector(                                   1 / (R * L),         1 / L,                where="beyond the paper"),
        "linear_bias":   _vector(                                   1 / (N * L),         1 / L,                where="Tab. 2"),
        "attn_v_bias":   _vector(                                   1 / (KV * L),        1 / L,                where="Tab. 2"),
        "router":            Row(1 / N_gamma,          1 / N,       1 / (L * E),         1 / (N * L),          where="Tab. 1-2, Rule 1"),
        "router_bias":   _vector(                                   1 / (L * E),         1 / L,                where="beyond the paper"),
        "expert_bias":       Row(None,                 ONE,         None,                None, False, "zero",  where="Tab. 1-2, Rule 2, App. B"),
        "expert_up":         Row(N ** -HALF,           1 / N,       1 / (N * L * a * E), 1 / (N * L * a),      where="Tab. 1-2, Rule 3"),
        "expert_down":       Row(N ** -HALF / a,       1 / (N * a), 1 / (N * L * E),     1 / (N * L * a ** 2), where="Tab. 1-2, Rule 3"),
        "expert_up_bias":  _vector(                                 1 / (N * L * a * E), 1 / L,                where="Tab. 2"),
        "expert_down_bias": _vector(                                1 / (N * L * E),     1 / L,                where="Tab. 2"),
        "ffn_up":            Row(N ** -HALF,           1 / N,       1 / (N * L * a),     1 / (N * L * a),      where="Rule 3 with one expert"),
        "ffn_down":          Row(N ** -HALF / a,       1 / (N * a), 1 / (N * L),         1 / (N * L * a ** 2), where="Rule 3 with one expert"),
        "ffn_up_bias":   _vector(                                   1 / (N * L * a),     1 / L,                where="Tab. 2"),
        "shared_gate":       Row(1 / N_gamma,          1 / N,       1 / L,               1 / (N * L),          where="Rule 1 with one expert"),
    },
    forward=ForwardRules(residual=1 / L, logits=1 / N, attention_scale=1 / D_HEAD, moe_output=1 / N_ACT),
)
# fmt: on

DOWN_PROJECTIONS = ("expert_down", "ffn_down")


def _keep(rules: RuleSet, *factors: Monomial) -> RuleSet:
    """Return a rule set that scales with the given multipliers only."""

    def kept(rule: Monomial | None) -> Monomial | None:
        return None if rule is None else rule.keep(*factors)

    rows = {
        group: replace(
            row,
            init=kept(row.init),
            lr=row.lr.keep(*factors),
            eps=kept(row.eps),
            eps_paper=kept(row.eps_paper),
        )
        for group, row in rules.rows.items()
    }
    forward = rules.forward
    return RuleSet(
        rows, replace(forward, residual=forward.residual.keep(*factors), logits=forward.logits.keep(*factors))
    )


def _with_init(rules: RuleSet, groups: tuple[str, ...], init: Monomial, lr: Monomial | None = None) -> RuleSet:
    """Return a rule set in which some groups have another init (and lr)."""
    changed = {group: replace(rules.rows[group], init=init, lr=lr or rules.rows[group].lr) for group in groups}
    return replace(rules, rows={**rules.rows, **changed})


_PLAIN = _keep(EXPERTP)
SP = _with_init(
    replace(_PLAIN, forward=replace(_PLAIN.forward, attention_scale=D_HEAD**-HALF)),
    ("attn_o", *DOWN_PROJECTIONS),
    init=TWO_DEPTH**-HALF,  # GPT-2's residual init: an absolute size, not 1 at the base
)
WIDTHS = (N, N_gamma, KV, R)
MUP = _keep(EXPERTP, *WIDTHS)
COMPLETEP = _with_init(_keep(EXPERTP, *WIDTHS, L), DOWN_PROJECTIONS, init=(N * a) ** -HALF, lr=1 / (N * a))
FAN_IN_DOWN = _with_init(EXPERTP, DOWN_PROJECTIONS, init=(N * a) ** -HALF)
# EXPERTP without one factor. NO_DEPTH is a control along depth; layer norms may make up for the factors of the others.
NO_DEPTH = replace(EXPERTP, forward=replace(EXPERTP.forward, residual=ONE))
NO_MEAN = replace(
    EXPERTP, forward=replace(EXPERTP.forward, moe_output=E / N_ACT)
)  # n_act of the base: n_act grows like E
NO_ALPHA = _with_init(EXPERTP, DOWN_PROJECTIONS, init=N**-HALF, lr=1 / N)
# A control along experts and expert size: the stacked tensors of a layer count as one matrix with this fan-in.
FAN_IN_STACK = _with_init(EXPERTP, ("expert_up", "expert_down"), init=(N * a * E) ** -HALF, lr=1 / (N * a * E))
# What a family of models does without a plan: its own init, one learning rate for all tensors, no multipliers.
NATIVE = RuleSet(_PLAIN.rows, ForwardRules(ONE, ONE, ONE, ONE), is_native=True)

RULE_SETS: Mapping[RuleSetName, RuleSet] = {
    "expertp": EXPERTP,
    "sp": SP,
    "mup": MUP,
    "completep": COMPLETEP,
    "fan_in_down": FAN_IN_DOWN,
    "no_depth": NO_DEPTH,
    "no_mean": NO_MEAN,
    "no_alpha": NO_ALPHA,
    "fan_in_stack": FAN_IN_STACK,
    "native": NATIVE,
}
# Rule sets of the reference model.
REFERENCE_RULES: tuple[RuleSetName, ...] = tuple(name for name, rules in RULE_SETS.items() if not rules.is_native)

# Constant multipliers do not depend on scale. Names are FAMILY_lr and FAMILY_init; a family is one or more groups.
CONSTANT_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "attn_qkv": ("attn_qk", "attn_v", "latent_down", "latent_up"),
    "mlp_up": ("expert_up", "ffn_up"),
    "mlp_down": DOWN_PROJECTIONS,
    **{group: (group,) for group in EXPERTP.rows if group != "expert_bias"},
}

# Tuned by the paper's authors on their base model (appendix D.1).
PAPER_CONSTANTS: Mapping[str, float] = {
    "attn_qkv_lr": 1 / 16,
    "attn_v_init": 1 / 16,
    "router_lr": 1 / 16,
    "mlp_down_init": 1 / 4,
    "mlp_down_lr": 1 / 16,
}
