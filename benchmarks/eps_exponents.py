"""How gradient entries scale with width, depth, experts and expert size, beside both columns of Adam eps.

    python benchmarks/eps_exponents.py DATA [--out docs/results/eps-exponents.csv] [--seeds 3]

DATA is a directory of token shards with at most 4096 ids. Adam's eps must scale like a gradient entry; the rule
table's `consistent` column says how it should, the `paper` column what the paper prints. Takes about 25 minutes on
2 cores.
"""

import argparse
import csv
import math
import sys
import time
from pathlib import Path

from expertp.config import build
from expertp.data import Dataset, open_dataset
from expertp.probes import mean_gradient_rms, scaling_exponents
from expertp.rules import EXPERTP, E, L, Monomial, N, a
from expertp.spec import RunSpec

BASE = {"n_embd": 64, "d_head": 32, "n_layer": 4, "n_exp": 8, "n_act": 2, "alpha_ffn": 1, "context": 64}
AXES = {
    "N": (N, [{"n_embd": n} for n in (64, 128, 256)]),
    "L": (L, [{"n_layer": n} for n in (4, 8, 16)]),
    "E": (E, [{"n_exp": 4 * n, "n_act": n} for n in (2, 4, 8)]),
    "a": (a, [{"alpha_ffn": n} for n in (1, 2, 4)]),
}
MULTIPLIERS = (1, 2, 4)
# Groups whose gradient entries the rule table speaks about; Q and K start flat and are left out, as in the paper.
GROUPS = ("embedding", "norm", "final_norm", "attn_v", "attn_o", "linear_bias", "router", "expert_up", "expert_down")


def make_run(changes: dict[str, float], seed: int, vocab_size: int) -> RunSpec:
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
    """Return one mapping of exponents per seed."""
    _, sizes = AXES[axis]
    exponents = []
    for seed in range(seeds):
        scales = [mean_gradient_rms(make_run(size, seed, vocab_size), dataset, first, last) for size in sizes]
        exponents.append(scaling_exponents(MULTIPLIERS, scales))
    return exponents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA")
    parser.add_argument("--out", type=Path, metavar="FILE.csv")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    dataset = open_dataset(args.data)
    vocab_size = dataset.vocab_size or 4096
    writer = csv.writer(args.out.open("w", newline="") if args.out else sys.stdout)
    writer.writerow(["group", "axis", "measured", "standard_error", "consistent", "paper"])
    for axis, (symbol, _) in AXES.items():
        started = time.monotonic()
        by_seed = measure(dataset, axis, args.seeds, vocab_size)
        for group in GROUPS:
            values = [exponents[group] for exponents in by_seed]
            mean = sum(values) / len(values)
            spread = math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1) / len(values))
            row = EXPERTP.rows[group]
            columns = [float(power(rule, symbol)) for rule in (row.eps, row.eps_paper)]
            writer.writerow([group, axis, f"{mean:.3f}", f"{spread:.3f}", *columns])
        print(f"axis {axis}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def power(rule: Monomial | None, symbol: Monomial) -> float:
    assert rule is not None, "these groups are Adam parameters"
    return float(rule.power_of(symbol))


if __name__ == "__main__":
    main()
