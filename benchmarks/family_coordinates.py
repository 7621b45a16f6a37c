"""Coordinate checks of OLMoE, Mixtral and DeepSeek-V3: how sizes of activations and updates grow along every axis.

    expertp prepare builtin --out prepared/bytes --tokenizer bytes
    python -m benchmarks.family_coordinates prepared/bytes --out docs/results/families

Needs the extra `[hf]`. For each family and rule set, the learning rate is that of the lowest loss at the base, on seeds
that the check does not use. Writes learning-rates.csv, slopes.csv and README.md.
"""

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from expertp.config import build
from expertp.coordcheck.measuring import measure, probed_runs
from expertp.coordcheck.slopes import CoordinateCheck, Slope, analyse
from expertp.data import Dataset, open_dataset
from expertp.spec import RunSpec
from expertp.study.spec import StudySpec
from expertp.training.loop import TrainingLoop

COMMON = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "olmoe": {
        **{"num_key_value_heads": 4, "intermediate_size": 32, "norm_topk_prob": True},
        **{"num_experts": 8, "num_experts_per_tok": 2},
    },
    "mixtral": {"num_key_value_heads": 4, "intermediate_size": 32, "num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v3": {
        **{"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "v_head_dim": 16},
        **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "first_k_dense_replace": 0, "intermediate_size": 64},
        **{"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
        **{"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0},
    },
}
TITLES = {"olmoe": "OLMoE", "mixtral": "Mixtral", "deepseek_v3": "DeepSeek-V3"}
BALANCE = {"olmoe": "aux_loss", "mixtral": "aux_loss", "deepseek_v3": "proportional"}
AXES = {"width": [64, 128, 256], "depth": [4, 8, 16], "experts": [8, 16, 32], "alpha": [0.5, 1, 2]}
# Axes and init std of each rule set; `native` is the family's own init with one learning rate.
AXES_OF = {"expertp": tuple(AXES), "native": ("width", "depth")}
INIT_STD = {"expertp": 0.08, "native": 0.02}
TUNING_STEPS, TUNING_SEEDS, LOG2_LR = 60, (10, 11), {"expertp": range(-10, -4), "native": range(-13, -6)}
STEPS, SEEDS = 16, (0, 1, 2)
TOLERANCE = 0.25  # of a size's slope
SHOWN = ("router", "attn_o", "moe_output", "stream", "logits")


@dataclass(frozen=True)
class TunedRate:
    """Mean training loss at the base over the last tenth of its steps, for one learning rate and seed."""

    family: str
    rules: str
    log2_lr: float
    seed: int
    loss: float


@dataclass(frozen=True)
class FamilySlope:
    """One slope of a check, at the learning rate that was chosen for it."""

    family: str
    rules: str
    log2_lr: float
    axis: str
    module: str
    check: str
    slope: float | None
    standard_error: float | None
    low: float
    high: float


def settings(family: str, rules: str, log2_lr: float, data: str) -> dict[str, Any]:
    """Return the sections of a run or study that trains a family's base."""
    return {
        "base": {"hf": {"model_type": family, **COMMON, **FAMILIES[family]}, "context": 64},
        "hps": {"lr": 2.0**log2_lr, "init_std": INIT_STD[rules], "adam_eps": 1e-12, "rules": rules},
        "train": {
            **{"data": data, "steps": TUNING_STEPS, "batch_tokens": 1024, "eval_every": 0},
            **{"balance": BALANCE[family], "diverge_above": 1000},
        },
    }


def tune(family: str, rules: str, data: str, dataset: Dataset) -> Iterator[TunedRate]:
    """Train the base with every learning rate; a run that diverges has no loss."""
    for log2_lr in LOG2_LR[rules]:
        for seed in TUNING_SEEDS:
            tree = settings(family, rules, log2_lr, data)
            run = build(RunSpec, {**tree, "model": tree["base"], "train": {**tree["train"], "seed": seed}}, family)
            loop = TrainingLoop(run, dataset, "cpu")
            losses = []
            while len(losses) < TUNING_STEPS and not (outcome := loop.step()).diverged:
                losses.append(outcome.loss)
            if len(losses) == TUNING_STEPS:
                yield TunedRate(family, rules, log2_lr, seed, statistics.fmean(losses[-TUNING_STEPS // 10 :]))


def best(rates: Sequence[TunedRate]) -> float:
    """Return the learning rate of the lowest mean loss, among those at which no seed diverged.

    An optimum at the end of the grid is an error: the check would be at a learning rate that is not the base's best.
    """
    by_rate = {each.log2_lr: [other.loss for other in rates if other.log2_lr == each.log2_lr] for each in rates}
    complete = {lr: statistics.fmean(losses) for lr, losses in by_rate.items() if len(losses) == len(TUNING_SEEDS)}
    found = min(complete, key=lambda lr: complete[lr])
    grid = LOG2_LR[rates[0].rules]
    if found in (grid[0], grid[-1]):
        raise SystemExit(f"{rates[0].family}, {rates[0].rules}: the best of the grid is its end, 2^{found}; widen it")
    return found


def check(family: str, rules: str, log2_lr: float, data: str, dataset: Dataset) -> CoordinateCheck:
    """Return the coordinate check of a family along the axes of a rule set."""
    axes = {axis: AXES[axis] for axis in AXES_OF[rules]}
    tree = settings(family, rules, log2_lr, data)
    parts = {"name": family, "axes": axes, "grids": {"log2_lr": [log2_lr]}, "seeds": list(SEEDS), "verdict": None}
    study = build(StudySpec, {**tree, **parts}, family)
    return analyse(measure(probed_runs(study, rules), dataset, STEPS), study, rules, STEPS)


def row(family: str, rules: str, log2_lr: float, slope: Slope) -> FamilySlope:
    """Return a slope as a row of the table."""
    names = ("axis", "module", "check", "slope", "standard_error", "low", "high")
    return FamilySlope(family, rules, log2_lr, *(getattr(slope, name) for name in names))


def distance(slope: FamilySlope) -> float:
    """Return how far a slope lies outside the expected range; infinitely where runs have diverged."""
    if slope.slope is None:
        return math.inf
    return max(slope.low - slope.slope, slope.slope - slope.high, 0.0)


def page(slopes: Sequence[FamilySlope]) -> str:
    """Return the results as a markdown page."""
    judged = [each for each in slopes if each.rules == "expertp"]
    outside = [each for each in judged if distance(each) > TOLERANCE]
    lines = [
        "# Coordinate checks of three families",
        "",
        f"Slope of log size against log scale after training steps (x1, x2, x4; mean over {len(SEEDS)} seeds and the "
        f"recorded steps from {STEPS // 3 + 1} to {STEPS}), at the learning rate that is best for the base after "
        f"{TUNING_STEPS} steps. "
        "The base has 64 channels, 4 layers, and 8 experts of 32 hidden units, 2 of them active. `native` is the "
        "family's own init with one learning rate.",
        "",
        "Written by `python -m benchmarks.family_coordinates prepared/bytes --out docs/results/families`.",
        "",
        "| model | rules | axis | log2 lr | " + " | ".join(SHOWN) + " |",
        "|---" * (4 + len(SHOWN)) + "|",
    ]
    for key in dict.fromkeys((each.family, each.rules, each.axis, each.log2_lr) for each in slopes):
        family, rules, axis, log2_lr = key
        sizes = {
            each.module: each.slope
            for each in slopes
            if (each.family, each.rules, each.axis, each.check) == (family, rules, axis, "size")
        }
        cells = [written(sizes.get(name)) for name in SHOWN]
        lines.append(f"| {TITLES[family]} | `{rules}` | {axis} | {log2_lr:g} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Of all {len(judged)} slopes under `expertp` (sizes at init and after steps, effective and propagated "
        f"updates), {len(judged) - len(outside)} lie within {TOLERANCE} of the expected range"
        + ("." if not outside else "; the others:"),
    ]
    lines += [""] if outside else []
    lines += [
        f"- {TITLES[each.family]} along {each.axis}: {each.check} of `{each.module}` {written(each.slope)} "
        f"({each.low:g}{'' if each.low == each.high else f' to {each.high:g}'})"
        for each in outside
    ]
    return "\n".join(lines) + "\n"


def written(slope: float | None) -> str:
    """Return a slope as text."""
    return "none" if slope is None else f"{slope:+.2f}"


def write_csv(path: Path, rows: Sequence[TunedRate | FamilySlope]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(rows[0])])
        writer.writerows([f"{v:.4f}" if isinstance(v, float) else v for v in astuple(each)] for each in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="directory of token shards")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    dataset = open_dataset(args.data)
    rates: list[TunedRate] = []
    slopes: list[FamilySlope] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for family in FAMILIES:
        for rules in AXES_OF:
            started = time.monotonic()
            tuned = list(tune(family, rules, args.data, dataset))
            found = check(family, rules, best(tuned), args.data, dataset)
            rates += tuned
            slopes += [row(family, rules, best(tuned), slope) for slope in found.slopes]
            write_csv(args.out / "learning-rates.csv", rates)
            write_csv(args.out / "slopes.csv", slopes)
            (args.out / "README.md").write_text(page(slopes), encoding="utf-8")
            seconds = f"{time.monotonic() - started:.0f} s"
            print(f"{family}, {rules}: {len(found.diverged)} runs diverged, {seconds}", file=sys.stderr)


if __name__ == "__main__":
    main()
