"""Measurements of docs/performance.md: experts and steps, growth of cost, peak memory, a profile.

    python -m benchmarks.performance --out docs/results/performance.json
    python -m benchmarks.performance --fill docs/performance.md --out docs/results/performance.json

The first command measures (about 15 minutes on 2 cores), the second writes tables of the stored numbers to the page.
`expertp bench` runs only the comparisons.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from expertp.bench import experts, step
from expertp.bench.experts import Shape
from expertp.bench.timing import describe_machine, interleaved
from expertp.model import transformer
from expertp.spec import ModelSpec
from expertp.util.fits import fit_slope
from scripts.docs_tables import fill_blocks, markdown_table

ROUNDS = 7
STEP = ModelSpec(n_embd=128, d_head=32, n_layer=4, n_exp=16, n_act=4, alpha_ffn=1, vocab_size=1024, context=256)
STEP_TOKENS = 4096
# Sizes of each axis: (size, model, tokens). n_exp grows at fixed n_act, n_act at fixed n_exp.
AXES: Mapping[str, Sequence[tuple[float, ModelSpec, int]]] = {
    "tokens": [(t, STEP, t) for t in (2048, 4096, 8192, 16384)],
    "n_embd": [(n, STEP.replace(n_embd=n), STEP_TOKENS) for n in (64, 128, 256, 512)],
    "n_exp": [(e, STEP.replace(n_exp=e), STEP_TOKENS) for e in (8, 16, 32, 64)],
    "n_act": [(k, STEP.replace(n_exp=32, n_act=k), STEP_TOKENS) for k in (2, 4, 8, 16)],
    "n_layer": [(n, STEP.replace(n_layer=n), STEP_TOKENS) for n in (2, 4, 8, 16)],
}
# Shape of the profile: many small experts, for which dispatch costs most.
PROFILED = Shape(64, 16, 0.25)
MEMORY_MODEL = ModelSpec(n_embd=256, n_layer=4, n_exp=16, n_act=4, vocab_size=50304, context=256)
MEMORY_TOKENS = 8192
DTYPE_SHAPES = (Shape(4, 1, 1.0), Shape(16, 4, 1.0), Shape(16, 4, 0.25), Shape(64, 16, 0.25))


def growth() -> list[dict[str, Any]]:
    """Return by axis the time of a step at each size, and the exponent of time in size."""
    rows = []
    for axis, points in AXES.items():
        steps = {f"{size:g}": step.training_step(model, "fused", tokens) for size, model, tokens in points}
        ms = interleaved(steps, rounds=ROUNDS, warm_up=1)
        sizes = [size for size, _, _ in points]
        times = [ms[f"{size:g}"] for size in sizes]
        # Overhead dominates small sizes, so the last doubling is reported too.
        last = math.log2(times[-1] / times[-2]) / math.log2(sizes[-1] / sizes[-2])
        rows.append(
            {"axis": axis, "ms": ms, "exponent": fit_slope(zip(sizes, times, strict=True)), "last_doubling": last}
        )
        print(f"growth: {axis} {rows[-1]['exponent']:.2f}", file=sys.stderr)
    return rows


def unchunked_cross_entropy(h_TN: Tensor, weight_VN: Tensor, target_T: Tensor) -> Tensor:
    """Return the loss computed from the logits of the whole batch."""
    return F.cross_entropy(F.linear(h_TN, weight_VN), target_T)


def peak_memory() -> list[dict[str, Any]]:
    """Return the peak memory of a step with and without chunks, measured in separate processes."""
    rows = []
    for name in ("chunked", "unchunked", "nothing"):
        command = [sys.executable, __file__, "--peak-of", name]
        kilobytes = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append({"loss": name, "mib": kilobytes / 1024})
        print(f"memory: {name} {kilobytes / 1024:.0f} MiB", file=sys.stderr)
    return rows


def peak_of(name: str) -> int:
    """Take two steps and return the peak memory of this process in KiB; `nothing` only builds the model.

    `ru_maxrss` cannot be used: in a child process it starts at the parent's value.
    """
    if name == "unchunked":
        transformer.linear_cross_entropy = unchunked_cross_entropy
    take_step = step.training_step(MEMORY_MODEL, "fused", MEMORY_TOKENS)
    if name != "nothing":
        take_step()
        take_step()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])


def profiled() -> list[dict[str, Any]]:
    """Return the operations that take most of the time in the fused experts."""
    run = experts.contestants(PROFILED, n_embd=256, tokens=8192)["fused"]
    for _ in range(3):
        run()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(5):
            run()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return [
        {"operation": event.key, "calls": event.count // 5, "share": event.self_cpu_time_total / total}
        for event in events[:8]
    ]


def cases(compare: Callable[..., Any], shapes: Iterable[Shape], dtype: str) -> list[dict[str, Any]]:
    """Return the rows of one comparison of `expertp bench`."""
    rows = []
    for shape in shapes:
        rows.append(asdict(compare(shape, rounds=ROUNDS, dtype=dtype)))
        print(f"{compare.__name__}: {shape.name} {dtype} {rows[-1]['vs_dense']}", file=sys.stderr)
    return rows


# Parts of the page in order.
PARTS: Mapping[str, Callable[[], Any]] = {
    "machine": lambda: asdict(describe_machine()),
    "experts": lambda: [
        row for dtype in ("float32", "bfloat16") for row in cases(experts.compare_experts, experts.SHAPES, dtype)
    ],
    "step": lambda: cases(step.compare_steps, step.SHAPES, "float32"),
    "profile": profiled,
    "growth": growth,
    "memory": peak_memory,
    "dtype": lambda: [compare_dtypes(n_embd, shape) for n_embd in (64, 128, 256, 512) for shape in DTYPE_SHAPES],
}


def compare_dtypes(n_embd: int, shape: Shape) -> dict[str, Any]:
    """Return the time of a step in bfloat16 divided by float32."""
    model = STEP.replace(
        n_embd=n_embd, n_exp=shape.n_exp, n_act=shape.n_act, alpha_ffn=shape.alpha_ffn, n_layer=2, vocab_size=4096
    )
    steps = {dtype: step.training_step(model, "fused", STEP_TOKENS, dtype) for dtype in ("float32", "bfloat16")}
    ms = interleaved(steps, rounds=5)
    print(f"dtype: {n_embd} {shape.name} {ms['bfloat16'] / ms['float32']:.2f}", file=sys.stderr)
    return {"n_embd": n_embd, "n_hid": model.n_hid, "name": shape.name, "ratio": ms["bfloat16"] / ms["float32"]}


def tables(numbers: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """Return the generated blocks of the page by name."""
    machine = numbers["machine"]

    def case_table(cases: Sequence[Mapping[str, Any]]) -> str:
        names = list(cases[0]["ms"])
        header = ("case", "type", *(f"{name} ms" for name in names), "/ dense", "/ best peer")
        rows = [
            (
                case["name"],
                case["dtype"],
                *(f"{case['ms'][name]:.0f}" for name in names),
                f"{case['vs_dense']:.2f}",
                f"{case['vs_best_peer']:.2f}",
            )
            for case in cases
        ]
        return markdown_table(header, rows)

    def memory_table() -> str:
        mib = {row["loss"]: row["mib"] for row in numbers["memory"]}
        rows = [
            (name, f"{mib[name]:.0f}", f"{mib[name] / mib['unchunked']:.2f}", f"{mib[name] - mib['nothing']:.0f}")
            for name in ("chunked", "unchunked")
        ]
        return markdown_table(("loss", "peak MiB", "/ unchunked", "of it for the step"), rows)

    return {
        "measured-machine": lambda: (
            f"Measured on {machine['processor']}, {machine['threads']} threads, torch {machine['torch']}; a large "
            f"float32 matrix product ran at {machine['gemm_gflops']:.0f} GFLOP/s."
        ),
        "measured-experts": lambda: case_table(numbers["experts"]),
        "measured-step": lambda: case_table(numbers["step"]),
        "measured-growth": lambda: markdown_table(
            ("axis", "step, ms", "exponent", "of the last doubling"),
            [
                (
                    f"`{row['axis']}`",
                    ", ".join(f"{size}: {ms:.0f}" for size, ms in row["ms"].items()),
                    f"{row['exponent']:.2f}",
                    f"{row['last_doubling']:.2f}",
                )
                for row in numbers["growth"]
            ],
        ),
        "measured-memory": memory_table,
        "measured-profile": lambda: markdown_table(
            ("operation", "calls", "share"),
            [(f"`{row['operation']}`", str(row["calls"]), f"{row['share']:.0%}") for row in numbers["profile"]],
        ),
        "measured-dtype": lambda: markdown_table(
            ("experts", "n_embd", "n_hid", "bfloat16 / float32"),
            [(row["name"], str(row["n_embd"]), str(row["n_hid"]), f"{row['ratio']:.2f}") for row in numbers["dtype"]],
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="JSON", help="file of the measured numbers")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, metavar="PART", help=f"measure only some of {', '.join(PARTS)}"
    )
    parser.add_argument("--fill", type=Path, metavar="PAGE", help="write tables of the stored numbers to a page")
    parser.add_argument("--peak-of", choices=("chunked", "unchunked", "nothing"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak_of:
        print(peak_of(args.peak_of))
    elif args.fill:
        numbers = json.loads(args.out.read_text(encoding="utf-8"))
        args.fill.write_text(fill_blocks(args.fill.read_text(encoding="utf-8"), tables(numbers)), encoding="utf-8")
    else:
        numbers = json.loads(args.out.read_text(encoding="utf-8")) if args.only else {}
        numbers |= {part: PARTS[part]() for part in args.only or PARTS}
        args.out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
