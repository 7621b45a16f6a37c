"""Solve the mean-field limit of a deep residual MoE under gradient descent, and compare finite networks with it.

`solve` solves the limit of a problem. `simulate` trains finite networks on it. `compare` does both and fits how fast
networks approach the limit. `size` predicts how large a network must be for its loss curve to match the limit within 5%
and 1%, or within --within. `soft-router` draws the paper's figure of soft routers. `verify` measures every claim of
docs/theory.md and exits with code 1 if one fails.

PROBLEM.yaml describes the problem (`expertp init` writes one). Without it, the base problem of docs/theory.md is used.
DIR receives the numbers as JSON, and figures as svg, png and csv. If DIR is STUDY/theory, in the directory of a study,
the results of `compare` become part of the study's report.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expertp.cli.progress import Reporter
from expertp.cli.text import text_table
from expertp.config import load_spec
from expertp.errors import InputError, did_you_mean, printable
from expertp.util.files import exclusive, temporary_name, write_atomically
from expertp.util.text import count, plural

if TYPE_CHECKING:
    from expertp.theory.spec import TheorySpec
    from expertp.theory.trajectory import Tick, Trajectory

EXAMPLES = """\
  expertp theory compare configs/theory.yaml eta=0.1 networks.seeds=8 --out out/compare
  expertp theory verify
"""
# Number of steps in a table of losses.
MOST_STEPS = 9
# Kernels that need more memory are not drawn.
MOST_GIGABYTES = 2.0


@dataclass
class Outcome:
    """The JSON record of a computation, its lines for the terminal, and by name the drawer and data of its figures."""

    record: Any
    text: list[str] = field(default_factory=list)
    drawings: dict[str, tuple[Callable[..., None], Any]] = field(default_factory=dict)
    ok: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("what", choices=tuple(VERBS), metavar="|".join(VERBS), help="the computation")
    parser.add_argument(
        "problem_file", nargs="?", metavar="PROBLEM.yaml", help="the problem (default: the one of docs/theory.md)"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for example eta=0.1 or solver.nodes=32")
    parser.add_argument("--out", metavar="DIR", help="directory for numbers and figures")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument(
        "--within", type=float, action="append", metavar="FRACTION", help="size: bound (default: 0.05, 0.01)"
    )
    parser.add_argument("--full", action="store_true", help="verify: all sizes and seeds (about 15 minutes)")
    parser.add_argument("--only", metavar="NAME", help="verify: one group of checks, such as networks")


def run(args: argparse.Namespace) -> int:
    """Run the computation named on the command line, write its files to DIR, and print its text or JSON."""
    if args.problem_file and "=" in args.problem_file:  # no file, only overrides
        args.problem_file, args.overrides = None, [args.problem_file, *args.overrides]
    name = args.what.replace("-", "_")
    if args.out is None:
        found = VERBS[args.what](args)
    else:
        out = Path(args.out)
        with exclusive(out, busy=f"{out}: another process uses this directory; wait for it, or choose another --out"):
            _check_writable(out / f"{name}.json")  # now, and not after minutes of solving
            found = VERBS[args.what](args)
            _write(found, out, name)
    print(json.dumps(found.record) if args.json else "\n".join(found.text))
    return 0 if found.ok else 1


def _check_writable(path: Path) -> None:
    """Raise the error that writing a file would raise; nothing stays on disk."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory, but a file is to be written here; choose another --out")
    probe = temporary_name(path)
    probe.touch()
    probe.unlink()


def _write(found: Outcome, out: Path, name: str) -> None:
    """Write the figures and then the numbers."""
    from expertp.figures.save import render

    drawn = [render(figure, *each) for figure, each in found.drawings.items()]
    for drawing in drawn:
        drawing.write(out)
    write_atomically(out / f"{name}.json", (json.dumps(found.record) + "\n").encode())
    files = [f"{name}.json", *(f"{each.name}.svg" for each in drawn)]
    found.text.append(f"{printable(str(out))}: {', '.join(files)}")


def _load(args: argparse.Namespace) -> "TheorySpec":
    from expertp.theory.spec import TheorySpec

    return load_spec(TheorySpec, args.problem_file, args.overrides)


def _solve(args: argparse.Namespace) -> Outcome:
    spec = _load(args)

    from expertp.figures.theory import kernels
    from expertp.theory.compare import solve
    from expertp.theory.records import SolveRecord

    with_kernels, notes = _kernels_fit(args, spec, spec.solver.replicates)
    with _progress("solve") as tick:
        found = solve(spec.problem, spec.solver, with_kernels, tick)
    form, mc_error = spec.solver.form_for(spec), _percent(found.mc_error)
    title = f"{spec.name}: the limit, {form} form, Monte-Carlo error {mc_error}"
    text = [title, _loss_table({"loss": found}), *notes]
    if not found.is_monotone:
        text.append("the loss does not fall at every step, so noise is amplified; lower eta to compare with networks")
    drawings = {"kernels": (kernels.draw, kernels.data(found))} if with_kernels else {}
    return Outcome(SolveRecord.of(spec, found).to_dict(), text, drawings)


def _simulate(args: argparse.Namespace) -> Outcome:
    spec = _load(args)

    from expertp.theory.finite import simulate
    from expertp.theory.records import NetworkRecord, SimulationRecord

    networks, found = spec.networks, {}
    seeds, start = range(networks.seeds), (networks.frame, networks.biases)
    for size in networks.sizes:
        with _progress(str(size)) as tick:
            found[size] = simulate(spec.problem, size, seeds, *start, tick=tick)
    records = tuple(NetworkRecord.of(size, each) for size, each in found.items())
    title = f"{spec.name}: loss, mean over {plural(networks.seeds, 'network')} per size"
    record = SimulationRecord(problem=spec, networks=records).to_dict()
    return Outcome(record, [title, _loss_table(found)])


def _compare(args: argparse.Namespace) -> Outcome:
    spec = _load(args)

    from expertp.figures.theory import error, kernels, loss, router
    from expertp.theory.compare import compare, largest
    from expertp.theory.records import ComparisonRecord

    with_kernels, notes = _kernels_fit(args, spec, max(spec.solver.replicates, spec.networks.seeds))
    with _progress("compare") as tick:
        found = compare(spec.problem, spec.solver, spec.networks, with_kernels, tick)
    figures = {"loss": loss, "router": router, "error": error} if args.out else {}
    drawings = {name: (figure.draw, figure.data(found)) for name, figure in figures.items()}
    if with_kernels:
        size = largest(spec, found.networks)
        drawings["kernels"] = (kernels.draw, kernels.data(found.theory, found.networks[size], size))
    rows = [("networks", "weights", "alpha_star", "one network", "their mean")]
    for size in found.networks:
        errors = (_percent(found.error(size)), _percent(found.error_of_mean(size)))
        rows.append((str(size), count(size.parameters(spec)), f"{size.alpha_star(spec):.3g}", *errors))
    text = [
        f"{spec.name}: loss, Monte-Carlo error of the limit {_percent(found.theory.mc_error)}",
        _loss_table({"limit": found.theory, **found.networks}),
        f"\ndistance of f to the limit over data and steps, {plural(spec.networks.seeds, 'network')} per size",
        text_table(rows),
    ]
    for each in found.approaches():
        first, last = count(each.values[0]), count(each.values[-1])
        text.append(f"error over {each.dimension}: slope {each.slope:+.2f} from {first} to {last}")
    return Outcome(ComparisonRecord.of(spec, found).to_dict(), [*text, *notes], drawings)


def _size(args: argparse.Namespace) -> Outcome:
    bounds = args.within or [0.05, 0.01]
    for bound in bounds:
        if not 0 < bound < 1:
            raise InputError(f"--within {bound:g}: give a fraction between 0 and 1, such as 0.05")
    spec = _load(args)
    if spec.alpha_star or math.isfinite(spec.n_hid):
        raise InputError("size: the limit has n_hid=inf and alpha_star=0; leave both out")

    from expertp.theory.records import SizingRecord
    from expertp.theory.sizing import HELD_OUT, measure_law, measured_error

    with _progress("networks") as tick:
        law = measure_law(spec.problem, tick=tick)
    with _progress("held-out size") as tick:
        measured = measured_error(spec.problem.replace(L=2 * spec.L), HELD_OUT, law.limit, n_seeds=16, tick=tick)
    record = SizingRecord.of(spec, law, bounds, measured)
    rows = [("within", "fewest weights", "value at which one dimension alone contributes half of it")]
    for each in record.answers:
        smallest = "none up to 65536" if each.smallest is None else str(each.smallest)
        alone = ", ".join(f"{key} {value:.3g}" for key, value in each.alone.items())
        rows.append((_percent(each.within), smallest, alone))
    held_out = record.held_out
    text = [
        f"{spec.name}: sizes at which the loss curve of a network matches the limit",
        text_table(rows),
        f"checked at {held_out}, which the law was not fitted to: {_percent(held_out.predicted)} predicted, "
        f"{_percent(held_out.measured)} measured",
    ]
    return Outcome(record.to_dict(), text)


def _soft_router(args: argparse.Namespace) -> Outcome:
    if not args.out:
        raise InputError("soft-router: give --out DIR for the figure")
    if args.problem_file is None:
        args.overrides = ["gate=soft0", *args.overrides]
    spec = _load(args)

    from expertp.figures.theory import soft_router as figure
    from expertp.theory.soft_router import WAYS, soft_router

    with _progress("soft router") as tick:
        found = soft_router(spec.problem, spec.networks.seeds, tick)
    drawings = {"soft_router": (figure.draw, figure.data(WAYS, found))}
    return Outcome({"problem": spec.to_dict()}, drawings=drawings)


def _verify(args: argparse.Namespace) -> Outcome:
    from expertp.theory.verify import CHECKS

    if args.problem_file or args.overrides:
        raise InputError("verify: takes no problem; every check has its own")
    if args.only is not None and args.only not in CHECKS:
        raise InputError(f"--only '{args.only}': no such group; {did_you_mean(args.only, CHECKS)}")
    names = list(CHECKS) if args.only is None else [args.only]
    found = []
    with Reporter("verify", total=len(names)) as reporter:
        for done, name in enumerate(names):
            reporter.update(done, name)
            for check in CHECKS[name](args.full):
                found.append(check)
                reporter.update(done, f"{name}: {check.check}")
    rows = [("check", "value", "bound", "Monte-Carlo error", "")]
    for check in found:
        mc_error = "" if check.mc_error is None else _percent(check.mc_error)
        rows.append((check.check, f"{check.value:.3g}", check.bound, mc_error, "PASS" if check.ok else "FAIL"))
    passed = sum(check.ok for check in found)
    text = [text_table(rows), f"\n{passed} of {plural(len(found), 'check')} passed"]
    return Outcome([check.to_dict() for check in found], text, ok=passed == len(found))


VERBS: Mapping[str, Callable[[argparse.Namespace], Outcome]] = {
    "solve": _solve,
    "simulate": _simulate,
    "compare": _compare,
    "size": _size,
    "soft-router": _soft_router,
    "verify": _verify,
}


@contextmanager
def _progress(title: str) -> "Iterator[Tick]":
    with Reporter(title, total=1.0) as reporter:
        yield lambda done, total: reporter.update(done / total, f"step {done} of {total}")


def _kernels_fit(args: argparse.Namespace, spec: "TheorySpec", n: int) -> tuple[bool, list[str]]:
    """Return whether kernels of n replicates or networks are drawn, and a note if they are too large."""
    # Two kernels of (P T)^2 float64 numbers at every layer boundary.
    size = spec.P * spec.T
    gigabytes = 16 * (spec.L + 1) * size**2 * n / 1e9
    if not args.out or gigabytes <= MOST_GIGABYTES:
        return bool(args.out), []
    return False, [f"kernels are not drawn: at P*T = {size} they would need {gigabytes:.0f} GB"]


def _loss_table(found: "Mapping[Any, Trajectory]") -> str:
    """Return the mean loss at some steps, one row per trajectory."""
    T = next(iter(found.values())).f.shape[1]
    steps = sorted({round(place * (T - 1) / (MOST_STEPS - 1)) for place in range(MOST_STEPS)})
    rows = [("step", *(str(step) for step in steps))]
    for name, each in found.items():
        mean = each.losses_each.mean(0)
        rows.append((str(name), *(f"{mean[step]:.4g}" for step in steps)))
    return text_table(rows)


def _percent(fraction: float) -> str:
    return "unknown" if math.isnan(fraction) else f"{100 * fraction:.2g}%"
