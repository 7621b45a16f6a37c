"""The one next command: what every verb suggests at its end, on terminals only.

It goes to standard error, never with --json, and only after a command that ended well. A suggestion runs as printed,
from the same working directory. `NEXT` has one function per verb.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any

from expertp.cli.init import DIRECTORY, STARTERS
from expertp.cli.planner import CONFIGS
from expertp.config import load_base, load_target, sections_of, split_overrides
from expertp.errors import InputError
from expertp.plan import plan
from expertp.report import commands
from expertp.spec import BaseHPs, ModelSpec
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
        print(f"next: {NEXT[verb](args, words)}", file=sys.stderr)


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
    """Return the plan of the page's models, or of the files of one directory."""
    del words
    if args.hf:
        return command("plan", "--hf", *args.hf, *_steps(args.steps), *args.overrides)
    folder = (args.base or args.target or Path(DIRECTORY, "base.yaml")).parent
    base, target = args.base or folder / "base.yaml", args.target or folder / "target.yaml"
    return _plan(base, target, args.overrides, args.steps) or _init()


def _plan(base: Path, target: Path, overrides: Words = (), steps: int | None = None) -> str | None:
    """Return the command that plans two files, or None if it would refuse them."""
    if not _fit(base, target, overrides, steps=steps):
        return None
    return command("plan", "--base", base, "--target", target, *_steps(steps), *overrides)


def _fit(base: Path, target: Path, overrides: Words, **options: Any) -> bool:
    """Return whether `plan` takes two files."""
    try:
        sections = split_overrides(overrides, {"model": ModelSpec, "hps": BaseHPs})
        model, hps = load_base(base, sections["hps"])
        plan(model, load_target(target, sections["model"]), hps, **options)
    except (InputError, OSError):
        return False
    return True


def _steps(steps: int | None) -> tuple[object, ...]:
    return ("--steps", steps) if steps else ()


def _after_capacity(args: Args, words: Words) -> str:
    if not args.fit:
        return command("capacity", *words, "--fit")
    if args.file.suffix in (".yaml", ".yml"):
        return _after_file(args.file, args.overrides)
    if (args.file / "run.json").is_file():
        return command("watch", args.file)
    config = args.file / "config.json" if args.file.is_dir() else args.file
    with suppress(InputError):  # a plan may be larger than a file of settings
        if {"model_type", "text_config"} & sections_of(config).keys():
            return command("plan", "--hf", args.file, args.file, "hps.lr=0.01", "hps.init_std=0.02")
    return command("doctor")


def _after_show(args: Args, words: Words) -> str:
    del words
    return _after_file(Path(args.file), args.overrides)


def _after_file(path: Path, overrides: Words) -> str:
    """Return what is done with a file, by its kind."""
    from expertp.cli.show import kind_of

    match kind_of(sections_of(path)):
        case "run":
            return command("train", path, "--out", Path("out", path.stem), *overrides)
        case "study":
            return command("sweep", path, "--dry-run", *overrides)
        case "theory":
            return command("theory", "solve", path, *overrides)
        case kind:  # base or target; the planner's model.* are those of the target
            section = "hps." if kind == "base" else "model."
            mine = [text for text in overrides if text.startswith(section)]
            return (
                _planner(kind, path, mine) or _plan(path.parent / "base.yaml", path.parent / "target.yaml") or _init()
            )


def _planner(kind: str, path: Path, overrides: Words) -> str | None:
    """Return the command that makes the page of a base or target, or None if its other model does not fit."""
    files = {"base": CONFIGS / "base.yaml", "target": CONFIGS / "target.yaml", kind: path}
    is_taken = _fit(files["base"], files["target"], overrides, allow_kappa_change=True)
    return command("planner", f"--{kind}", path, *overrides) if is_taken else None


def _after_init(args: Args, words: Words) -> str:
    del words
    folder = Path(args.directory)
    return command("plan", "--base", folder / "base.yaml", "--target", folder / "target.yaml")


def _after_prepare(args: Args, words: Words) -> str:
    from expertp.data import open_dataset
    from expertp.data.shards import padded_vocab_size

    del words
    dataset, run_file = open_dataset(str(args.out)), Path(DIRECTORY, "run.yaml")
    first = ""
    if not run_file.exists():
        first, run_file = f"{_init()} && ", _new_folder() / "run.yaml"
    overrides = [f"train.data={args.out}"]
    overrides += [f"model.vocab_size={padded_vocab_size(dataset.vocab_size)}"] if dataset.vocab_size else []
    overrides += [] if dataset.val.tokens else ["train.eval_every=0"]
    return first + command("train", run_file, "--out", Path("out", Path(args.out).name), *overrides)


def _after_train(args: Args, words: Words) -> str:
    del words
    return command("generate", args.out, "--prompt", "Once")


def _after_generate(args: Args, words: Words) -> str:
    """Return the command that samples more texts, with what is not given yet."""
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    more = [(flag, value) for flag, value in (("--samples", 3), ("--top-p", 0.9)) if flag not in given]
    if args.samples > 1 or args.temperature == 0 or not more:
        return command("demo")
    return command("generate", *words, *chain(*more))


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


def _after_watch(args: Args, words: Words) -> str:
    del words
    if (args.directory / "study.json").exists():
        return command("status", args.directory)
    if not (args.directory / "run.json").exists():
        return _begin()
    if (args.directory / "summary.json").exists():
        return command("generate", args.directory, "--prompt", "Once")
    return command("capacity", args.directory, "--fit")


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


def _after_paper(args: Args, words: Words) -> str:
    if args.dry_run:
        return command("paper", *(word for word in words if word != "--dry-run"))
    match args.action:
        case "list":
            return command("paper", "make", "bias-shift", "--dry-run")
        case "make" | "all":
            return command("paper", "page", "--out", args.out)
        case _:  # page
            return command("theory", "compare")


def _after_completion(args: Args, words: Words) -> str:
    """Return the command that loads the script into the shell."""
    script = command("completion", *words)
    return f"{script} | source" if args.shell == "fish" else f'eval "$({script})"'


def _after_report(args: Args, words: Words) -> str:
    if args.open:
        return command("coordcheck", Path(args.directory) / "study.json", "--out", Path(args.directory) / "coordcheck")
    return command("report", *words, "--open")


def _after_theory(args: Args, words: Words) -> str:
    if args.what == "verify":
        return command("paper", "list") if args.full else command("theory", *words, "--full")
    after = {"solve": "compare", "simulate": "compare", "compare": "size"}.get(args.what, "verify")
    problem = [args.problem_file, *args.overrides] if args.problem_file else args.overrides
    return command("theory", after, *(problem if after != "verify" else ()))


def _begin(*_: object) -> str:
    """Return the plan of the starter files, or the command that writes them."""
    return _plan(Path(DIRECTORY, "base.yaml"), Path(DIRECTORY, "target.yaml")) or _init()


def _init() -> str:
    folder = _new_folder()
    return command("init", *([] if folder == Path(DIRECTORY) else [folder]))


def _new_folder() -> Path:
    """Return the first directory to which `expertp init` can write the starter files."""

    def is_free(path: Path) -> bool:
        return not path.exists() or (path.is_dir() and not any((path / name).exists() for name in STARTERS))

    names = chain([DIRECTORY, "my-model"], (f"my-model-{number}" for number in count(2)))
    return next(path for path in map(Path, names) if is_free(path))


def _demo(*_: object) -> str:
    return command("demo")


def _without_dry_run(verb: str, args: Args, words: Words) -> str:
    out = () if args.out else ("--out", Path("studies", Path(args.study_file).stem))
    return command(verb, *(word for word in words if word != "--dry-run"), *out)


NEXT: Mapping[str, Callable[[Args, Words], str]] = {
    "demo": _begin,
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
    "watch": _after_watch,
    "tune": _after_tune,
    "coordcheck": _after_coordcheck,
    "paper": _after_paper,
    "report": _after_report,
    "theory": _after_theory,
    "bench": lambda *_: command("doctor"),
    "completion": _after_completion,
    "doctor": _demo,
}
