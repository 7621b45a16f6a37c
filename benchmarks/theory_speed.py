"""Speed of the reduced form: against the kernel form, against averaging networks, and its growth in T, L and P.

`python -m benchmarks.theory_speed [--out DIR]` prints the results and writes theory_speed.json. For each solver, the
smallest number of neurons (a power of two) is found at which one replicate has the required accuracy, root mean square
over replicates; then the solvers are timed in turns.
"""

import argparse
import itertools
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from expertp.bench.timing import describe_machine, interleaved
from expertp.theory import kernel, reduced
from expertp.theory.compare import rms_distance
from expertp.theory.finite import Size, simulate
from expertp.theory.problem import Problem
from expertp.theory.sampling import Sampling
from expertp.theory.trajectory import distance
from expertp.util.fits import fit_slope

ACCURACY, NEAR_LIMIT = 0.003, 0.01
NODES = 16
# Large enough for the mean of many networks to come within NEAR_LIMIT; the mean of narrower networks never does.
NETWORKS = Size(256, 64, 64)


def least_neurons(solve, problem, reference):
    """Return the number of neurons per node for the required accuracy."""
    for neurons in (2**power for power in range(1, 14)):
        if rms_distance(solve(problem, neurons, 8), reference) <= ACCURACY:
            return neurons
    raise SystemExit("no number of neurons reaches the required accuracy")


def by_reduced(problem, neurons, replicates=1):
    return reduced.solve(problem, Sampling(NODES, neurons, replicates))


def by_kernel(problem, neurons, replicates=1):
    return kernel.solve(problem, Sampling(NODES, neurons, replicates, dtype=torch.float64))


def against_kernel(rounds):
    problem = Problem(P=4, T=20)
    reference = reduced.solve(problem, Sampling(64, 2048, 4)).f
    neurons = {each: least_neurons(each, problem, reference) for each in (by_reduced, by_kernel)}
    ms = interleaved({each.__name__: partial(each, problem, n) for each, n in neurons.items()}, rounds)
    return {
        "neurons": {each.__name__: NODES * n for each, n in neurons.items()},
        "ms": ms,
        "ratio": ms["by_kernel"] / ms["by_reduced"],
    }


def against_networks():
    """Average networks, four at a time, until their mean is near the limit, and time the reduced form in between."""
    problem = Problem()
    reference = reduced.solve(problem, Sampling(64, 2048, 4)).f
    neurons = least_neurons(by_reduced, problem, reference)
    outputs, times = [], {"by_reduced": [], "networks": []}
    while not outputs or distance(np.mean(outputs, axis=0), reference) > NEAR_LIMIT:
        seeds = range(len(outputs), len(outputs) + 4)
        started = time.perf_counter()
        by_reduced(problem, neurons)
        between = time.perf_counter()
        outputs.extend(simulate(problem, NETWORKS, seeds, dtype=torch.float32).f_each)
        times["by_reduced"].append(1e3 * (between - started))
        times["networks"].append(1e3 * (time.perf_counter() - between))
        if len(outputs) >= 500:
            raise SystemExit(f"the mean of {len(outputs)} networks is not near the limit")
    ms = {"by_reduced": float(np.median(times["by_reduced"])), "networks": sum(times["networks"])}
    size = f"N={NETWORKS.N}, E={NETWORKS.E}, n_hid={NETWORKS.n_hid}"
    ratio = ms["networks"] / ms["by_reduced"]
    return {"neurons": NODES * neurons, "networks": len(outputs), "size": size, "ms": ms, "ratio": ratio}


def cost_exponents(rounds):
    """Return the exponents with which the time of the reduced form grows in T, L and P."""
    values = {"T": (20, 40, 80, 160), "L": (2, 4, 8, 16), "P": (20, 40, 80, 160)}
    found = {}
    for name, sizes in values.items():
        contestants = {
            str(value): partial(reduced.solve, Problem(**{name: value}), Sampling(NODES, 1024, 1)) for value in sizes
        }
        ms = interleaved(contestants, rounds)
        times = [ms[str(value)] for value in sizes]
        found[name] = {"values": sizes, "ms": times, "exponent": fit_slope(zip(sizes, times, strict=True))}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record = {
        "machine": vars(describe_machine()),
        "against_kernel": against_kernel(args.rounds),
        "against_networks": against_networks(),
        "cost": cost_exponents(args.rounds),
    }
    one, other = record["against_kernel"], record["against_networks"]
    print(
        f"P=4, T=20, {ACCURACY:.1%} accuracy: {one['ms']['by_reduced']:.1f} ms, kernel form {one['ratio']:.0f}x slower"
    )
    print(
        f"P=20, T=40: {other['ms']['by_reduced']:.0f} ms; {other['networks']} networks of {other['size']}, "
        f"whose mean is within {NEAR_LIMIT:.0%}: {other['ratio']:.0f}x slower"
    )
    for name, each in record["cost"].items():
        times = ", ".join(f"{value}: {ms:.0f}" for value, ms in itertools.zip_longest(each["values"], each["ms"]))
        print(f"cost over {name}: exponent {each['exponent']:.2f} (ms at {times})")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "theory_speed.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
