"""The one next command: what every verb suggests at its end, on terminals only.

It goes to standard error, never with --json, and only after a command that ended well. A suggestion runs as printed,
from the same working directory. `NEXT` has one function per verb; None means that nothing sensible follows.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from expertp.cli.init import DIRECTORY
from expertp.errors import InputError
from expertp.report import commands
from expertp.util.machine import rank_and_ranks
from expertp.util.plain_yaml import read_yaml
from expertp.util.text import command

Args = argparse.Namespace
Words = Sequence[str]


def suggest(verb: str, args: Args, words: Words) -> None:
    """Print the next command, if somebody reads along.

    Args:
        verb: the verb that has ended well.
        args: its arguments, parsed.
        words: its arguments as they were given.
    """
    if not is_read_by_people() or getattr(args, "json", False):
        return
    with suppress(InputError, OSError):  # a suggestion never fails a command
        if line := NEXT[verb](args, words):
            print(f"next: {line}", file=sys.stderr)


def is_read_by_people() -> bool:
    """Return whether both outputs are terminals, and this is the process that speaks for a launcher's others."""
    return sys.stdout.isatty() and sys.stderr.isatty() and rank_and_ranks()[0] == 0


def _after_plan(args: Args, words: Words) -> str:
    del words
    if args.hf:
        return command("capacity", args.hf[1], "--fit")
    models = [text for text in args.overrides if text.startswith("model.")]
    return command("capacity", args.target, "--fit", *models)


def _after_planner(args: Args, words: Words) -> str:
    del words
    return command("plan", "--base", args.base, "--target", args.target) if args.base and args.target else _init()


def _after_capacity(args: Args, words: Words) -> str | None:
    if not args.fit:
        return command("capacity", *words, "--fit")
    if args.file.suffix not in (".yaml", ".yml"):
        return None
    return _after_file(args.file, args.overrides)


def _after_show(args: Args, words: Words) -> str | None:
    del words
    return _after_file(Path(args.file), args.overrides)


def _after_file(path: Path, overrides: Words) -> str | None:
    """Return what is done with a file, by its kind."""
    from expertp.cli.show import settings

    match settings(str(path), overrides).kind:
        case "run":
            return command("train", path, "--out", Path("out", path.stem), *overrides)
        case "study":
            return command("sweep", path, "--dry-run", *overrides)
        case "theory":
            return command("theory", "solve", path, *overrides)
        case kind:  # base or target
            return command("planner", f"--{kind}", path, *overrides)


def _after_init(args: Args, words: Words) -> str:
    del words
    folder = Path(args.directory)
    return command("plan", "--base", folder / "base.yaml", "--target", folder / "target.yaml")


def _after_prepare(args: Args, words: Words) -> str:
    from expertp.data import open_dataset
    from expertp.data.shards import padded_vocab_size

    del words
    dataset, run_file = open_dataset(str(args.out)), Path(DIRECTORY, "run.yaml")
    overrides = [f"train.data={args.out}"]
    overrides += [f"model.vocab_size={padded_vocab_size(dataset.vocab_size)}"] if dataset.vocab_size else []
    overrides += [] if dataset.val.tokens else ["train.eval_every=0"]
    first = "" if run_file.exists() else f"{_init()} && "
    return first + command("train", run_file, "--out", Path("out", Path(args.out).name), *overrides)


def _after_train(args: Args, words: Words) -> str:
    del words
    return command("generate", args.out, "--prompt", "Once")


def _after_generate(args: Args, words: Words) -> str | None:
    if args.samples > 1:
        return command("demo")
    return command("generate", *words, "--samples", 3, "--top-p", 0.9)


def _after_sweep(args: Args, words: Words) -> str:
    if args.dry_run:
        return _without_dry_run("sweep", args, words)
    return commands.report(Path(args.out))


def _after_status(args: Args, words: Words) -> str:
    """Return the command that continues a study, or shows what it has found."""
    from expertp.cli.status import next_cells_of
    from expertp.study.executors.slurm_jobs import jobs_of
    from expertp.study.progress import ProgressWatch
    from expertp.study.store import read_study

    del words
    directory = read_study(args.directory)
    progress, jobs = ProgressWatch(directory).look(), jobs_of(directory)
    adaptive = () if directory.study.chosen is None else ("--until", "decided")
    if progress.ended == progress.total:
        is_open = bool(next_cells_of(directory))
        return commands.sweep(directory.path, *adaptive) if is_open else commands.report(directory.path)
    if progress.running or (jobs and jobs.states):
        return command("status", args.directory)
    return commands.sweep(directory.path, *adaptive)


def _after_tune(args: Args, words: Words) -> str:
    if args.dry_run:
        return _without_dry_run("tune", args, words)
    tuned = read_yaml((Path(args.out) / "preset.yaml").read_text(encoding="utf-8"))["hps"]
    overrides = [text for text in args.overrides if not text.startswith("hps.")]
    overrides += [
        f"hps.{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in tuned.items()
    ]
    return command("sweep", args.study_file, "--dry-run", *overrides)


def _after_coordcheck(args: Args, words: Words) -> str:
    del words
    study = Path(args.out).parent
    if (study / "study.json").exists():
        return commands.report(study)
    return command("sweep", args.study_file, "--dry-run", *args.overrides)


def _after_paper(args: Args, words: Words) -> str | None:
    if args.dry_run:
        return command("paper", *(word for word in words if word != "--dry-run"))
    match args.action:
        case "list":
            return command("paper", "make", "bias-shift", "--dry-run")
        case "make" | "all":
            return command("paper", "page", "--out", args.out)
        case _:
            return None


def _after_report(args: Args, words: Words) -> str | None:
    if args.open:
        return command("coordcheck", Path(args.directory) / "study.json", "--out", Path(args.directory) / "coordcheck")
    return command("report", *words, "--open")


def _after_theory(args: Args, words: Words) -> str | None:
    del words
    order = {"solve": "compare", "simulate": "compare", "compare": "size", "size": "verify", "soft-router": "verify"}
    if args.what not in order:
        return None
    problem = [args.problem_file, *args.overrides] if args.problem_file else args.overrides
    return command("theory", order[args.what], *(problem if order[args.what] != "verify" else ()))


def _init(*_: object) -> str:
    return command("init")


def _demo(*_: object) -> str:
    return command("demo")


def _without_dry_run(verb: str, args: Args, words: Words) -> str:
    out = () if args.out else ("--out", Path("studies", Path(args.study_file).stem))
    return command(verb, *(word for word in words if word != "--dry-run"), *out)


NEXT: Mapping[str, Callable[[Args, Words], str | None]] = {
    "demo": _init,
    "plan": _after_plan,
    "planner": _after_planner,
    "capacity": _after_capacity,
    "show": _after_show,
    "init": _after_init,
    "prepare": _after_prepare,
    "train": _after_train,
    "generate": _after_generate,
    "sweep": _after_sweep,
    "status": _after_status,
    "watch": lambda args, _: command("status", args.directory),
    "tune": _after_tune,
    "coordcheck": _after_coordcheck,
    "paper": _after_paper,
    "report": _after_report,
    "theory": _after_theory,
    "bench": lambda *_: command("doctor"),
    "completion": lambda args, _: f'eval "$(expertp completion {args.shell})"' if args.shell != "fish" else None,
    "doctor": _demo,
}
