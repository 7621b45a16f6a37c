"""Solve the mean-field limit of a deep residual MoE under gradient descent, and set finite networks beside it.

`solve` gives the limit of a problem; `simulate` trains finite networks on it; `compare` does both and says how fast
networks approach the limit; `size` says how large a network must be for its loss curve to be that of the limit, within
1% and 5% or as --within says; `soft-router` makes the paper's figure of that name. PROBLEM.yaml has the problem
(`expertp init` writes one); without it the base problem of docs/theory.md is taken. `verify` checks the theory itself:
every claim of docs/theory.md with its measured value and bound, exit code 1 when one fails.

DIR gets the numbers as JSON, and figures as svg, png and csv. With DIR = STUDY/theory, in a study's directory, what
`compare` finds becomes part of the report.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expertp.cli.progress import Reporter
from expertp.cli.text import columns
from expertp.config import load_spec
from expertp.errors import InputError, did_you_mean
from expertp.files import write_atomically
from expertp.wording import count

if TYPE_CHECKING:
    from expertp.figures.save import Drawing
    from expertp.theory.compare import Comparison
    from expertp.theory.finite import Size
    from expertp.theory.problem import Problem
    from expertp.theory.progress import Tick
    from expertp.theory.spec import TheorySpec
    from expertp.theory.trajectory import Trajectory
    from expertp.theory.verify import Check

EXAMPLES = """\
  expertp theory compare configs/theory.yaml eta=0.1 networks.seeds=8 --out out/compare
  expertp theory verify
"""
# How many steps of a trajectory a table shows.
MOST_STEPS = 9
# Kernels that take more are not drawn.
MOST_GIGABYTES = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("what", choices=tuple(VERBS), metavar="|".join(VERBS), help="what to do")
    parser.add_argument(
        "problem_file", nargs="?", metavar="PROBLEM.yaml", help="the problem (default: that of the docs)"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="such as eta=0.1, solver.nodes=32")
    parser.add_argument("--out", metavar="DIR", help="where numbers and figures go")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument(
        "--within", type=float, action="append", metavar="SHARE", help="size: bound (default: 0.05, 0.01)"
    )
    parser.add_argument("--full", action="store_true", help="verify: all sizes and seeds, which takes far longer")
    parser.add_argument("--only", metavar="NAME", help="verify: one group of checks, such as networks")


def run(args: argparse.Namespace) -> int:
    """Do what is asked."""
    if args.problem_file and "=" in args.problem_file:  # no file, only overrides
        args.problem_file, args.overrides = None, [args.problem_file, *args.overrides]
    return VERBS[args.what](args)


def _load(args: argparse.Namespace) -> "TheorySpec":
    from expertp.theory.spec import TheorySpec

    return load_spec(TheorySpec, args.problem_file, args.overrides)


def _solve(args: argparse.Namespace) -> int:
    spec = _load(args)

    from expertp.theory.compare import solve

    problem, solver = spec.problem, spec.solver
    gigabytes = _kernel_gigabytes(problem, solver.replicates)
    is_drawn = bool(args.out) and gigabytes <= MOST_GIGABYTES
    with _progress("solve") as tick:
        found = solve(problem, solver, kernels=is_drawn, tick=tick)
    text = [
        f"{spec.name}: the limit, {solver.form_for(problem)} form, Monte-Carlo error {_percent(found.mc_error)}",
        columns(_loss_table({"loss": found})),
    ]
    if not found.is_monotone:
        text.append("the loss does not fall at every step: noise is amplified there; lower eta to have a reference")
    drawings = []
    if is_drawn:
        from expertp.figures.save import render
        from expertp.figures.theory import kernels

        drawings.append(render("kernels", kernels.draw, kernels.data(found)))
    elif args.out:
        text.append(_no_kernels(problem, gigabytes))
    _finish(args, "solve", {"problem": spec.to_tree(), **_of_trajectory(found)}, text, drawings)
    return 0


def _kernel_gigabytes(problem: "Problem", n: int) -> float:
    """Return what kernels of n replicates or networks take: two of (P T)^2 numbers a layer."""
    return 16 * (problem.L + 1) * (problem.P * problem.T) ** 2 * n / 1e9


def _no_kernels(problem: "Problem", gigabytes: float) -> str:
    return f"kernels are not drawn: at P*T = {problem.P * problem.T} they would take {gigabytes:.0f} GB"


def _simulate(args: argparse.Namespace) -> int:
    spec = _load(args)

    from expertp.theory.finite import simulate

    networks, found = spec.networks, {}
    for each in networks.sizes:
        with _progress(str(each)) as tick:
            found[each] = simulate(
                spec.problem, each, range(networks.seeds), networks.frame, networks.biases, tick=tick
            )
    record = {"problem": spec.to_tree(), "networks": [_of_networks(size, each) for size, each in found.items()]}
    table = columns(_loss_table({str(size): each for size, each in found.items()}))
    _finish(args, "simulate", record, [f"{spec.name}: loss, mean of {networks.seeds} networks of each size", table])
    return 0


def _compare(args: argparse.Namespace) -> int:
    spec = _load(args)

    from expertp.theory.compare import compare

    gigabytes = _kernel_gigabytes(spec.problem, max(spec.solver.replicates, spec.networks.seeds))
    is_drawn = bool(args.out) and gigabytes <= MOST_GIGABYTES
    with _progress("compare") as tick:
        found = compare(spec.problem, spec.solver, spec.networks, is_drawn, tick)
    record = {
        "problem": spec.to_tree(),
        "theory": _of_trajectory(found.theory),
        "networks": [
            {**_of_networks(size, each), "error": found.error(size), "error_of_mean": found.error_of_mean(size)}
            for size, each in found.networks.items()
        ],
        "approaches": [
            {"dimension": each.dimension, "values": each.values, "errors": each.errors, "slope": each.slope}
            for each in found.approaches()
        ],
    }
    text = _tell(spec, found)
    if args.out and not is_drawn:
        text.append(_no_kernels(spec.problem, gigabytes))
    _finish(args, "compare", record, text, _comparison_drawings(found, is_drawn) if args.out else ())
    return 0


def _tell(spec: "TheorySpec", found: "Comparison") -> list[str]:
    problem = found.problem
    rows = [("networks", "weights", "alpha_star", "one network", "their mean")]
    for size in found.networks:
        errors = (_percent(found.error(size)), _percent(found.error_of_mean(size)))
        rows.append((str(size), count(size.parameters(problem)), f"{size.alpha_star(problem):.3g}", *errors))
    return [
        f"{spec.name}: loss, Monte-Carlo error of the limit {_percent(found.theory.mc_error)}",
        columns(_loss_table({"limit": found.theory, **{str(size): each for size, each in found.networks.items()}})),
        f"\ndistance of f to the limit over data and steps, {spec.networks.seeds} networks of each size",
        columns(rows),
        *(
            f"error over {each.dimension}: slope {each.slope:+.2f} from {count(each.values[0])} to "
            f"{count(each.values[-1])}"
            for each in found.approaches()
        ),
    ]


def _comparison_drawings(found: "Comparison", with_kernels: bool) -> "list[Drawing]":
    from expertp.figures.save import render
    from expertp.figures.theory import error, kernels, loss, router
    from expertp.theory.compare import largest

    drawings = [
        render("loss", loss.draw, loss.data(found)),
        render("router", router.draw, router.data(found)),
        render("error", error.draw, error.data(found)),
    ]
    if with_kernels:
        size = largest(found.problem, found.networks)
        drawings.append(render("kernels", kernels.draw, kernels.data(found.theory, found.networks[size], size)))
    return drawings


def _size(args: argparse.Namespace) -> int:
    bounds = args.within or [0.05, 0.01]
    for bound in bounds:
        if not 0 < bound < 1:
            raise InputError(f"--within {bound:g}: give a share between 0 and 1, such as 0.05")
    spec = _load(args)

    from expertp.theory.sizing import HELD_OUT, measure_law, measured_error

    problem = spec.problem
    if problem.alpha_star or math.isfinite(problem.n_hid):
        raise InputError("size: the limit has n_hid=inf and alpha_star=0; leave both out")
    with _progress("networks") as tick:
        law = measure_law(problem, tick=tick)
    deeper = 2 * problem.L
    with _progress("held-out size") as tick:
        measured = measured_error(problem.replace(L=deeper), HELD_OUT, law.limit, n_seeds=16, tick=tick)
    predicted = law.error(HELD_OUT, deeper)
    answers = []
    for bound in bounds:
        found = law.smallest(bound)
        sizes = None if found is None else {**asdict(found[0]), "L": found[1]}
        answers.append({"within": bound, "smallest": sizes, "alone": law.alone(bound)})
    held_out = {**asdict(HELD_OUT), "L": deeper, "predicted": predicted, "measured": measured}
    rows = [("within", "fewest weights in all", "or, every other size infinite, half of it by itself")]
    for answer in answers:
        sizes = answer["smallest"]
        best = "none up to 65536" if sizes is None else ", ".join(f"{key} {value}" for key, value in sizes.items())
        alone = ", ".join(f"{key} {value:.3g}" for key, value in answer["alone"].items())
        rows.append((_percent(answer["within"]), best, alone))
    text = [
        f"{spec.name}: how large a network must be for its loss curve to be that of the limit",
        columns(rows),
        f"checked at {HELD_OUT}, L {deeper}, which the law has not seen: {_percent(predicted)} predicted, "
        f"{_percent(measured)} measured",
    ]
    _finish(args, "size", {"problem": spec.to_tree(), "answers": answers, "held_out": held_out}, text)
    return 0


def _soft_router(args: argparse.Namespace) -> int:
    if not args.out:
        raise InputError("soft-router: give --out DIR for the figure")
    if args.problem_file is None:
        args.overrides = ["gate=soft0", *args.overrides]
    spec = _load(args)

    from expertp.figures.save import render
    from expertp.figures.theory import soft_router as figure
    from expertp.theory.soft_router import WAYS, soft_router

    with _progress("soft router") as tick:
        found = soft_router(spec.problem, spec.networks.seeds, tick)
    drawing = render("soft_router", figure.draw, figure.data(WAYS, found))
    _finish(args, "soft_router", {"problem": spec.to_tree()}, (), [drawing])
    return 0


def _verify(args: argparse.Namespace) -> int:
    from expertp.theory.verify import CHECKS

    if args.problem_file or args.overrides:
        raise InputError("verify: takes no problem; its checks have their own")
    if args.only is not None and args.only not in CHECKS:
        raise InputError(f"--only '{args.only}': no such group; {did_you_mean(args.only, CHECKS)}")
    names = list(CHECKS) if args.only is None else [args.only]
    found: list[Check] = []
    with Reporter("verify", total=len(names)) as reporter:
        for place, name in enumerate(names):
            reporter.update(place, name)
            for check in CHECKS[name](args.full):
                found.append(check)
                reporter.update(place, f"{name}: {check.check}")
    rows = [("check", "value", "bound", "Monte-Carlo error", "")]
    for check in found:
        mc_error = "" if check.mc_error is None else _percent(check.mc_error)
        rows.append((check.check, f"{check.value:.3g}", check.bound, mc_error, "PASS" if check.ok else "FAIL"))
    passed = sum(check.ok for check in found)
    text = [columns(rows), f"\n{passed} of {len(found)} checks pass"]
    _finish(args, "verify", [check.to_json() for check in found], text)
    return 0 if passed == len(found) else 1


VERBS: Mapping[str, Callable[[argparse.Namespace], int]] = {
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


def _finish(
    args: argparse.Namespace, name: str, record: Any, text: Sequence[str], drawings: "Sequence[Drawing]" = ()
) -> None:
    """Write what is asked for, then print either JSON or what there is to read."""
    as_json = json.dumps(record)
    if args.out:
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        for drawing in drawings:
            drawing.write(out)
        write_atomically(out / f"{name}.json", (as_json + "\n").encode())
        text = [*text, f"{args.out}: {', '.join([f'{name}.json', *(f'{drawing.name}.svg' for drawing in drawings)])}"]
    print(as_json if args.json else "\n".join(text))


def _of_trajectory(found: "Trajectory") -> dict[str, Any]:
    mc_error = None if math.isnan(found.mc_error) else found.mc_error
    return {"loss": found.loss.tolist(), "f": found.f.tolist(), "mc_error": mc_error}


def _of_networks(size: "Size", found: "Trajectory") -> dict[str, Any]:
    from expertp.theory.trajectory import losses

    each = losses(found.f_each, found.y)
    sd = each.std(0, ddof=1).tolist() if len(each) > 1 else None
    return {**asdict(size), "seeds": len(each), "loss": each.mean(0).tolist(), "loss_sd": sd}


def _loss_table(found: "Mapping[str, Trajectory]") -> list[tuple[str, ...]]:
    """Return losses at some steps, a row per trajectory."""
    from expertp.theory.trajectory import losses

    T = next(iter(found.values())).f.shape[1]
    steps = sorted({round(place * (T - 1) / (MOST_STEPS - 1)) for place in range(MOST_STEPS)})
    rows = [("step", *(str(step) for step in steps))]
    for name, each in found.items():
        mean = losses(each.f_each, each.y).mean(0)
        rows.append((name, *(f"{mean[step]:.4g}" for step in steps)))
    return rows


def _percent(share: float) -> str:
    return "unknown" if math.isnan(share) else f"{100 * share:.2g}%"
