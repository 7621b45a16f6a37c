"""The formulas of a plan as data, so that a page can evaluate them without a copy of the rules.

Numbers that stand for a symbol go through the program's own functions: `group_settings` and `forward_multipliers` of
`plan`, `counts`, `flops_per_token` and `training_bytes` of `ModelSpec`. What comes out are monomials and polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import product
from typing import Any, get_args

from expertp.plan import GROUPS, forward_multipliers, group_settings, place_in_paper, present_groups
from expertp.rules import ONE, REFERENCE_RULES, RULE_SETS, SYMBOLS, Monomial
from expertp.spec import BaseHPs, EpsRule, ModelSpec

# Hyperparameters of the base, the constants of a group, and the length of the run relative to the base's.
FACTORS = ("init_std", "lr", "weight_decay", "adam_eps", "bias_lr", "c_init", "c_lr", "longer")
SIZES = ("n_embd", "n_layer", "n_exp", "n_act", "vocab_size", "context")
# Place of a setting that is 0; others are places in the list of monomials, and None is a setting that a group lacks.
ZERO = -1


class Symbolic(float):
    """A float that stands for a product of powers of symbols; it knows products, quotients and powers only."""

    monomial: Monomial

    def __new__(cls, monomial: Monomial) -> Symbolic:
        """Make the number; its value as a float is not a number."""
        number = super().__new__(cls, math.nan)
        number.monomial = monomial
        return number

    @classmethod
    def named(cls, symbol: str) -> Symbolic:
        """Return the number that stands for one symbol."""
        return cls(Monomial(((symbol, Fraction(1)),)))

    def __mul__(self, other: float) -> Symbolic:
        return Symbolic(self.monomial * _monomial(other))

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Symbolic:
        return Symbolic(self.monomial / _monomial(other))

    def __rtruediv__(self, other: float) -> Symbolic:
        return Symbolic(_monomial(other) / self.monomial)

    def __pow__(self, exponent: float, modulus: None = None) -> Symbolic:
        del modulus
        return Symbolic(self.monomial ** Fraction(exponent))

    def __hash__(self) -> int:
        return hash(self.monomial)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbolic) and self.monomial == other.monomial


def _monomial(number: float) -> Monomial:
    """Return a number as a monomial; rules have no numeric factors."""
    if isinstance(number, Symbolic):
        return number.monomial
    assert number == 1, f"{number} is a numeric factor"
    return ONE


Powers = tuple[str, ...]


class Polynomial(int):
    """An int that stands for a polynomial in sizes; it knows sums and products only.

    >>> n = Polynomial.named("n")
    >>> (2 * n * n + n).terms
    {('n', 'n'): 2, ('n',): 1}
    """

    terms: Mapping[Powers, int]

    def __new__(cls, terms: Mapping[Powers, int]) -> Polynomial:
        """Make the number; its value as an int means nothing."""
        number = super().__new__(cls, 0)
        number.terms = {powers: factor for powers, factor in terms.items() if factor}
        return number

    @classmethod
    def named(cls, symbol: str) -> Polynomial:
        """Return the number that stands for one size."""
        return cls({(symbol,): 1})

    def __add__(self, other: int) -> Polynomial:
        terms = dict(self.terms)
        for powers, factor in _terms(other).items():
            terms[powers] = terms.get(powers, 0) + factor
        return Polynomial(terms)

    __radd__ = __add__

    def __mul__(self, other: int) -> Polynomial:
        total = Polynomial({})
        for (ours, one), (theirs, two) in product(self.terms.items(), _terms(other).items()):
            total += Polynomial({tuple(sorted(ours + theirs)): one * two})
        return total

    __rmul__ = __mul__

    def __round__(self, digits: int = 0) -> Polynomial:  # type: ignore[override]
        del digits
        return self


def _terms(number: int) -> Mapping[Powers, int]:
    return number.terms if isinstance(number, Polynomial) else {(): number}


class _HiddenRatio(float):
    """alpha_ffn, of which only the product with n_embd is used: n_hid."""

    def __mul__(self, other: float) -> Polynomial:
        return Polynomial.named("n_hid")


def formulas() -> dict[str, Any]:
    """Return all formulas as plain values.

    `settings` has init std, lr, weight decay and Adam eps of every group, by rule set, eps rule and whether the router
    starts at zero; `forward` the forward multipliers by rule set and residual convention. Both refer to `monomials`:
    lists of (symbol, numerator, denominator). `variants` has the groups, counts and FLOPs of each architecture, as
    polynomials: lists of (factor, symbols).
    """
    monomials: dict[Monomial, int] = {}

    def place(setting: float | None) -> int | None:
        if setting is None:
            return None
        if isinstance(setting, Symbolic) or setting == 1:
            return monomials.setdefault(_monomial(setting), len(monomials))
        assert setting == 0, f"{setting} is neither a formula nor 0"
        return ZERO

    settings = {
        rules: {
            eps_rule: {str(is_zero).lower(): _settings(rules, eps_rule, is_zero, place) for is_zero in (False, True)}
            for eps_rule in get_args(EpsRule)
        }
        for rules in REFERENCE_RULES
    }
    forward = {
        rules: {residual: _forward(rules, residual, place) for residual in ("relative", "absolute")}
        for rules in REFERENCE_RULES
    }
    return {
        "groups": list(GROUPS),
        "starts": [RULE_SETS["expertp"].rows[group].start for group in GROUPS],
        "where": {rules: [place_in_paper(group, rules) for group in GROUPS] for rules in REFERENCE_RULES},
        "symbols": [*FACTORS, *SYMBOLS],
        "settings": settings,
        "forward": forward,
        "monomials": [_plain(monomial) for monomial in monomials],
        "variants": {
            f"{ffn},{str(tied).lower()},{str(bias).lower()}": _variant(ffn, tied, bias)
            for ffn, tied, bias in product(("moe", "dense"), (True, False), (True, False))
        },
    }


def _plain(monomial: Monomial) -> list[tuple[str, int, int]]:
    return [(symbol, power.numerator, power.denominator) for symbol, power in monomial.powers]


def _values() -> dict[str, float]:
    return {symbol: Symbolic.named(symbol) for symbol in SYMBOLS}


def _construct(kind: Any, **fields: Any) -> Any:
    """Return a spec without validation, which would refuse symbols."""
    return kind.model_construct(**fields)


def _hps(**options: Any) -> BaseHPs:
    """Return hyperparameters that are symbols, and options that are not."""
    numbers = {name: Symbolic.named(name) for name in FACTORS if name in BaseHPs.model_fields}
    made: BaseHPs = _construct(BaseHPs, **numbers, **options)
    return made


def _settings(rules: Any, eps_rule: str, has_zero_router: bool, place: Any) -> list[list[int | None]]:
    hps = _hps(eps_rule=eps_rule, gamma=math.inf if has_zero_router else 1.0)
    constants = {(group, what): Symbolic.named(f"c_{what}") for group in GROUPS for what in ("lr", "init")}
    longer = Symbolic.named("longer")
    rows = RULE_SETS[rules].rows
    planned = (group_settings(group, rows[group], hps, _values(), constants, longer) for group in GROUPS)
    return [[place(setting) for setting in vars(group).values()] for group in planned]


def _forward(rules: Any, residual: str, place: Any) -> dict[str, int | None]:
    hps = _hps(residual=residual)
    made = forward_multipliers(RULE_SETS[rules], hps, _values(), _construct(ModelSpec, ffn="moe"))
    return {name: place(setting) for name, setting in vars(made).items()}


def _variant(ffn: str, tied: bool, bias: bool) -> dict[str, Any]:
    """Return what depends on the architecture: groups, parameter counts, FLOPs per token and memory."""
    sizes = {name: Polynomial.named(name) for name in SIZES}
    model: ModelSpec = _construct(
        ModelSpec, **sizes, alpha_ffn=_HiddenRatio(), ffn=ffn, tied_embeddings=tied, linear_bias=bias
    )
    present = present_groups(model)
    return {
        "present": [group in present for group in GROUPS],
        "counts": {name: _sum(number) for name, number in vars(model.counts()).items()},
        "flops_per_token": _sum(model.flops_per_token()),
        "training_bytes": _sum(model.training_bytes()),
    }


def _sum(number: int) -> list[tuple[int, Iterable[str]]]:
    return [(factor, powers) for powers, factor in _terms(number).items()]
