"""Measure how gradient entries scale with width, depth, experts and expert size, and compare with Adam eps.

    expertp prepare builtin --out prepared/builtin-1024 --tokenizer bpe --vocab-size 1024
    python -m benchmarks.eps_exponents prepared/builtin-1024 --out docs/results

Writes eps-exponents.csv and eps-exponents.md. Adam's eps must scale like a gradient entry; the rule table has the
expected exponents (column `consistent`) and those printed in the paper (column `paper`). Takes about 15 minutes on 2
cores.
"""

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from expertp.config import build
from expertp.data import Dataset, open_dataset
from expertp.rules import EXPERTP, E, L, Monomial, N, a
from expertp.spec import RunSpec
from expertp.training.probes import mean_gradient_rms, scaling_exponents

BASE = {"n_embd": 64, "d_head": 32, "n_layer": 4, "n_exp": 8, "n_act": 2, "alpha_ffn": 1, "context": 64}
AXES = {
    "N": (N, [{"n_embd": n} for n in (64, 128, 256)]),
    "L": (L, [{"n_layer": n} for n in (4, 8, 16)]),
    "E": (E, [{"n_exp": 4 * n, "n_act": n} for n in (2, 4, 8)]),
    "a": (a, [{"alpha_ffn": n} for n in (1, 2, 4)]),
}
MULTIPLIERS = (1, 2, 4)
TOLERANCE = 0.3
# Groups with measurable gradients; Q and K have almost none at init and are excluded, as in the paper.
GROUPS = ("embedding", "norm", "final_norm", "attn_v", "attn_o", "linear_bias", "router", "expert_up", "expert_down")


def make_run(changes: Mapping[str, float], seed: int, vocab_size: int) -> RunSpec:
    base = {**BASE, "vocab_size": vocab_size, "linear_bias": True}
    tree = {
        "base": base,
        "model": {**base, **changes},
        "hps": {"lr": 2**-6, "init_std": 0.05, "bias_lr": 0.05, "constants": "paper"},
        "train": {"data": "", "steps": 61, "batch_tokens": 4096, "seed": seed, "eval_every": 0},
    }
    return build(RunSpec, tree, "eps_exponents")


def measure(
    dataset: Dataset, axis: str, seeds: int, vocab_size: int, first: int = 20, last: int = 60
) -> list[dict[str, float]]:
    """Return the exponents by group, for each seed."""
    _, sizes = AXES[axis]
    exponents = []
    for seed in range(seeds):
        scales = [mean_gradient_rms(make_run(size, seed, vocab_size), dataset, first, last) for size in sizes]
        exponents.append(scaling_exponents(MULTIPLIERS, scales))
    return exponents


@dataclass(frozen=True)
class Exponent:
    """Measured exponent of one group along one axis, with the two columns of the rule table."""

    group: str
    axis: str
    measured: float
    standard_error: float
    consistent: float
    paper: float


def summarise(axis: str, by_seed: list[dict[str, float]]) -> list[Exponent]:
    symbol, _ = AXES[axis]
    summary = []
    for group in GROUPS:
        values = [exponents[group] for exponents in by_seed]
        row = EXPERTP.rows[group]
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        consistent, paper = power(row.eps, symbol), power(row.eps_paper, symbol)
        summary.append(Exponent(group, axis, statistics.fmean(values), error, consistent, paper))
    return summary


def page(table: list[Exponent]) -> str:
    """Return the results as a markdown page."""
    place = {(entry.group, entry.axis): entry for entry in table}
    wrong = [e for e in table if abs(e.measured - e.consistent) > TOLERANCE]
    disputed = [e for e in table if e.consistent != e.paper]
    nearer = [e for e in disputed if abs(e.measured - e.consistent) < abs(e.measured - e.paper)]
    lines = [
        "# How gradient entries scale",
        "",
        "Exponent of the RMS gradient entry in width N, depth L, experts E and expert size a, with its standard error",
        f"over seeds; in brackets the exponent of Adam eps in the columns `consistent` and, where it differs, `paper`."
        f" {len(table) - len(wrong)} of {len(table)} lie within {TOLERANCE} of `consistent`; where the columns differ,",
        f"{len(nearer)} of {len(disputed)} lie nearer to `consistent` than to `paper`.",
        "",
        "Written by `python -m benchmarks.eps_exponents prepared/builtin-1024 --out docs/results`.",
        "",
        "| group | " + " | ".join(AXES) + " |",
        "|---" * (len(AXES) + 1) + "|",
    ]
    for group in GROUPS:
        cells = []
        for axis in AXES:
            e = place[group, axis]
            columns = f"{e.consistent:g}" if e.consistent == e.paper else f"{e.consistent:g}, paper {e.paper:g}"
            cells.append(f"{e.measured:+.2f} ± {e.standard_error:.2f} ({columns})")
        lines.append(f"| `{group}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="directory of token shards")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    dataset = open_dataset(args.data)
    table: list[Exponent] = []
    for axis in AXES:
        started = time.monotonic()
        table += summarise(axis, measure(dataset, axis, args.seeds, dataset.vocab_size or 50304))
        print(f"axis {axis}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "eps-exponents.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Exponent)])
        for entry in table:
            writer.writerow([f"{v:.3f}" if isinstance(v, float) else v for v in astuple(entry)])
    (args.out / "eps-exponents.md").write_text(page(table), encoding="utf-8")


def power(rule: Monomial | None, symbol: Monomial) -> float:
    assert rule is not None, "these groups are Adam parameters"
    return float(rule.power_of(symbol))


if __name__ == "__main__":
    main()
