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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expertp.cli.progress import Reporter
from expertp.cli.text import columns
from expertp.config import load_spec
from expertp.errors import InputError, did_you_mean
from expertp.files import write_atomically

if TYPE_CHECKING:
    from expertp.figures.save import Drawing
    from expertp.theory.compare import Comparison
    from expertp.theory.finite import Size
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("what", choices=tuple(VERBS), help="what to do")
    parser.add_argument(
        "problem_file", nargs="?", metavar="PROBLEM.yaml", help="the problem (default: that of the docs)"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="such as eta=0.1, solver.nodes=32")
    parser.add_argument("--out", metavar="DIR", help="where numbers and figures go")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument(
        "--within", type=float, action="append", metavar="SHARE", help="size: bound (default: 0.05, 0.01)"
    )
    parser.add_argument("--full", action="store_true", help="verify: all sizes and seeds, about an hour")
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

    with _progress("solve") as tick:
        found = solve(spec.problem, spec.solver, kernels=bool(args.out), tick=tick)
    record = _of_trajectory(found)
    drawings = []
    if args.out:
        from expertp.figures.save import render
        from expertp.figures.theory import kernels

        drawings.append(render("kernels", kernels.draw, kernels.data(found)))
    _finish(args, "solve", {"problem": spec.to_tree(), **record}, drawings)
    if not args.json:
        form = spec.solver.form_for(spec.problem)
        print(f"{spec.name}: the limit, {form} form, Monte-Carlo error {_percent(found.mc_error)}")
        print(columns(_loss_table({"loss": found})))
        _warn_unless_monotone(found)
    return 0


def _simulate(args: argparse.Namespace) -> int:
    spec = _load(args)

    from expertp.theory.finite import simulate

    networks, found = spec.networks, {}
    for each in networks.sizes:
        with _progress(_name(each.size)) as tick:
            found[each.size] = simulate(
                spec.problem, each.size, range(networks.seeds), networks.frame, networks.biases, tick=tick
            )
    record = {"problem": spec.to_tree(), "networks": [_of_networks(size, each) for size, each in found.items()]}
    _finish(args, "simulate", record, [])
    if not args.json:
        print(f"{spec.name}: loss, mean of {networks.seeds} networks of each size")
        print(columns(_loss_table({_name(size): each for size, each in found.items()})))
    return 0


def _compare(args: argparse.Namespace) -> int:
    spec = _load(args)

    from expertp.theory.compare import compare

    with _progress("compare") as tick:
        found = compare(spec.problem, spec.solver, spec.networks, tick)
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
    _finish(args, "compare", record, _comparison_drawings(found) if args.out else [])
    if not args.json:
        _print_comparison(spec, found)
    return 0


def _print_comparison(spec: "TheorySpec", found: "Comparison") -> None:
    shown = {"limit": found.theory, **{_name(size): each for size, each in found.networks.items()}}
    print(f"{spec.name}: loss, Monte-Carlo error of the limit {_percent(found.theory.mc_error)}")
    print(columns(_loss_table(shown)))
    print(f"\ndistance of f to the limit over data and steps, {spec.networks.seeds} networks of each size")
    rows = [("networks", "weights", "alpha_star", "one network", "their mean")]
    for size in found.networks:
        errors = (_percent(found.error(size)), _percent(found.error_of_mean(size)))
        rows.append(
            (_name(size), f"{size.parameters(found.problem)}", f"{size.alpha_star(found.problem):.3g}", *errors)
        )
    print(columns(rows))
    for each in found.approaches():
        print(f"error over {each.dimension}: slope {each.slope:+.2f} from {each.values[0]:g} to {each.values[-1]:g}")


def _comparison_drawings(found: "Comparison") -> "list[Drawing]":
    from expertp.figures.save import render
    from expertp.figures.theory import error, loss, router

    return [
        render("loss", loss.draw, loss.data(found)),
        render("router", router.draw, router.data(found)),
        render("error", error.draw, error.data(found)),
    ]


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
        sizes = None if found is None else {"N": found[0].N, "E": found[0].E, "n_hid": found[0].n_hid, "L": found[1]}
        answers.append({"within": bound, "smallest": sizes, "alone": law.alone(bound)})
    held_out = {"N": HELD_OUT.N, "E": HELD_OUT.E, "n_hid": HELD_OUT.n_hid, "L": deeper}
    held_out_record = {**held_out, "predicted": predicted, "measured": measured}
    _finish(args, "size", {"problem": spec.to_tree(), "answers": answers, "held_out": held_out_record}, [])
    if not args.json:
        print(f"{spec.name}: how large a network must be for its loss curve to be that of the limit")
        rows = [("within", "fewest weights in all", "or, every other size infinite, half of it by itself")]
        for answer in answers:
            sizes = answer["smallest"]
            text = "none up to 65536" if sizes is None else ", ".join(f"{key} {value}" for key, value in sizes.items())
            alone = ", ".join(f"{key} {value:.3g}" for key, value in answer["alone"].items())
            rows.append((_percent(answer["within"]), text, alone))
        print(columns(rows))
        print(
            f"checked at {_name(HELD_OUT)}, L {deeper}, which the law has not seen: {_percent(predicted)} predicted, "
            f"{_percent(measured)} measured"
        )
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
    _finish(args, "soft_router", {"problem": spec.to_tree()}, [drawing])
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
    record = [check.to_json() for check in found]
    if args.out:
        Path(args.out).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(args.out) / "verify.json", (json.dumps(record, indent=1) + "\n").encode())
    if args.json:
        print(json.dumps(record))
    else:
        rows = [("check", "value", "bound", "Monte-Carlo error", "")]
        for check in found:
            mc_error = "" if check.mc_error is None else _percent(check.mc_error)
            rows.append((check.check, f"{check.value:.3g}", check.bound, mc_error, "PASS" if check.ok else "FAIL"))
        print(columns(rows))
        failed = sum(not check.ok for check in found)
        print(f"\n{len(found) - failed} of {len(found)} checks pass")
    return 0 if all(check.ok for check in found) else 1


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


def _finish(args: argparse.Namespace, name: str, record: Mapping[str, Any], drawings: "Sequence[Drawing]") -> None:
    """Write what is asked for, and print JSON if that is."""
    text = json.dumps(record)
    if args.out:
        out = Path(args.out)
        out.mkdir(parents=True, exist_ok=True)
        for drawing in drawings:
            drawing.write(out)
        write_atomically(out / f"{name}.json", (text + "\n").encode())
    if args.json:
        print(text)
    elif args.out:
        files = [f"{name}.json", *(f"{drawing.name}.svg" for drawing in drawings)]
        print(f"{args.out}: {', '.join(files)}")


def _of_trajectory(found: "Trajectory") -> dict[str, Any]:
    mc_error = None if math.isnan(found.mc_error) else found.mc_error
    return {"loss": found.loss.tolist(), "f": found.f.tolist(), "mc_error": mc_error}


def _of_networks(size: "Size", found: "Trajectory") -> dict[str, Any]:
    from expertp.theory.trajectory import losses

    each = losses(found.f_each, found.y)
    return {
        "N": size.N,
        "E": size.E,
        "n_hid": size.n_hid,
        "seeds": len(each),
        "loss": each.mean(0).tolist(),
        "loss_sd": each.std(0, ddof=1).tolist() if len(each) > 1 else None,
    }


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


def _warn_unless_monotone(found: "Trajectory") -> None:
    if not found.is_monotone:
        print("the loss does not fall at every step: noise is amplified there; lower eta to have a reference")


def _name(size: "Size") -> str:
    return f"N {size.N}, E {size.E}, Ne {size.n_hid}"


def _percent(share: float) -> str:
    return "unknown" if math.isnan(share) else f"{100 * share:.2g}%"
