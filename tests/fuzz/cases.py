"""Kinds of cases: each copies valid inputs to a directory, mutates them, and names a command."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from fuzz.contract import Case
from fuzz.grammar import (
    JSON_FRAGMENTS,
    NAMES,
    VALUES,
    YAML_FRAGMENTS,
    as_json,
    as_yaml,
    mutate_directory,
    mutate_file,
    mutated,
    mutated_bytes,
)
from fuzz.templates import CONFIGURATIONS, SETTINGS, Templates

Kind = Callable[[random.Random, Templates, Path], Case]
VERBS = (
    "plan",
    "planner",
    "init",
    "prepare",
    "train",
    "generate",
    "sweep",
    "status",
    "tune",
    "coordcheck",
    "paper",
    "report",
    "theory",
    "show",
    "capacity",
    "watch",
    "completion",
)
# Verbs that train or solve; with --dry-run, they do not.
TRAINING = ("train", "sweep", "tune", "coordcheck", "paper", "theory")
FLAGS = {
    "plan": ("--base", "--target", "--json", "--steps", "--hf", "--roles", "--roles-file", "--export"),
    "planner": ("--base", "--target", "--out", "--hf"),
    "prepare": ("--out", "--tokenizer", "--vocab-size", "--val-fraction", "--shard-tokens", "--text-key", "--json"),
    "train": ("--out", "--json", "--track=tensorboard"),
    "generate": ("--prompt", "--tokens", "--samples", "--temperature", "--top-k", "--top-p", "--seed", "--json"),
    "sweep": ("--out", "--workers", "--dry-run", "--json"),
    "coordcheck": ("--out", "--rules", "--steps", "--json"),
    "report": ("--strict", "--json"),
    "theory": ("--out", "--json", "--only"),
    "tune": ("--out", "--dry-run", "--workers", "--json"),
    "show": ("--json",),
    "capacity": ("--devices", "--device", "--fit", "--tokens", "--efficiency", "--hours", "--json"),
    "watch": ("--port",),
}
FIRST = {
    "plan": ("", "--hf config.json large.json hps.lr=0.01", "--base base.yaml --target target.yaml"),
    "planner": ("", "--hf config.json large.json hps.lr=0.01"),
    "prepare": ("rows.jsonl", "text.txt", "folder", "nano", "builtin:", "hf:", "-"),
    "train": ("run.yaml",),
    "generate": ("run", "done", "run prompts.txt", "run prompts.jsonl"),
    "sweep": ("study.yaml",),
    "tune": ("study.yaml",),
    "coordcheck": ("study.yaml",),
    "status": ("study", "half"),
    "report": ("study",),
    "theory": ("solve theory.yaml", "simulate theory.yaml", "size", "compare theory.yaml"),
    "paper": ("list", "show x", "run x"),
    "init": ("new",),
    "show": tuple(SETTINGS),
    "capacity": (*SETTINGS, *CONFIGURATIONS, "run"),
    "watch": ("run.yaml", "run --port 0", "half --port 0", "nowhere --port 0"),
    "completion": ("bash", "zsh", "fish"),
}
ARGUMENTS = (
    *("", "-1", "0", "1", "2", "1e9", "9" * 30, "nan", "x", "--", "-", "=", "a=b", "a.b=c", "steps=5", "train.steps"),
    *(
        ".",
        "/",
        "/dev/null",
        "/proc/self/mem",
        "nowhere",
        "x" * 5000,
        "\udcff",
        "\x1b[2J",
        "a\nb",
        "~",
        "bytes",
        "gpt2x",
    ),
)


def settings_file(rng: random.Random, templates: Templates, root: Path) -> Case:
    """A file of settings with mutations, as a tree or as bytes."""
    name = rng.choice(list(SETTINGS))
    templates.copy(root, *SETTINGS, "tokens")
    path = root / name
    if rng.random() < 0.8:
        text = as_yaml(mutated(SETTINGS[name], rng, YAML_FRAGMENTS))
        path.write_text(text, "utf-8", "surrogatepass")
    else:
        path.write_bytes(mutated_bytes(path.read_bytes(), rng))
    return _on_settings("settings", name, rng, ())


def override(rng: random.Random, templates: Templates, root: Path) -> Case:
    """A valid file of settings with hostile overrides."""
    name = rng.choice(list(SETTINGS))
    templates.copy(root, *SETTINGS, "tokens")
    return _on_settings("override", name, rng, tuple(_override(name, rng) for _ in range(rng.choice((1, 1, 2)))))


def _override(name: str, rng: random.Random) -> str:
    tree = SETTINGS[name]
    section = rng.choice((*tree, *tree, "", "x", "model", "train", "steps"))
    content = tree.get(section)
    key = rng.choice((*content, "x", "", "a.b", "steps")) if isinstance(content, dict) else ""
    value = rng.choice(YAML_FRAGMENTS) if rng.random() < 0.4 else as_yaml(rng.choice(VALUES))
    form = rng.choice(("{s}.{k}={v}", "{s}.{k}={v}", "{s}.{k}={v}", "{s}={v}", "{k}={v}", "{s}.{k}", "{s}.{k}.x={v}"))
    text = form.format(s=section, k=key, v=value.strip("\n"))[:50_000].replace("\x00", "")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


def _on_settings(kind: str, name: str, rng: random.Random, overrides: tuple[str, ...]) -> Case:
    if rng.random() < 0.2:
        verb = rng.choice(("show", "capacity"))
        return Case(kind, (verb, name, *overrides))
    match name:
        case "base.yaml" | "target.yaml":
            return Case(kind, ("plan", "--base", "base.yaml", "--target", "target.yaml", *overrides))
        case "run.yaml":
            return Case(kind, ("train", name, "--out", "new", *overrides), ("new",), trains=True, may_be_large=True)
        case "theory.yaml":
            verb = rng.choice(("solve", "solve", "simulate"))
            return Case(kind, ("theory", verb, name, *overrides), trains=True, may_be_large=True)
        case _:
            more = ("--out", "new", "--dry-run")
            verb = rng.choice(("sweep", "sweep", "tune", "coordcheck"))
            trains = verb == "coordcheck"
            more = ("--out", "new", "--steps", "3") if trains else more
            return Case(kind, (verb, name, *more, *overrides), ("new",), trains=trains, may_be_large=True)


def configuration(rng: random.Random, templates: Templates, root: Path) -> Case:
    """Configurations of transformers, one of them with mutations."""
    templates.copy(root, *CONFIGURATIONS)
    name = rng.choice(list(CONFIGURATIONS))
    path = root / name
    if rng.random() < 0.8:
        path.write_text(as_json(mutated(CONFIGURATIONS[name], rng, JSON_FRAGMENTS)), "utf-8", "surrogatepass")
    else:
        path.write_bytes(mutated_bytes(path.read_bytes(), rng))
    if rng.random() < 0.2:
        return Case("configuration", ("capacity", name))
    more = rng.choice(((), (), ("--json",), ("--roles",), ("--export", "torchtitan"), ("--export", "automodel")))
    return Case("configuration", ("plan", "--hf", *CONFIGURATIONS, "hps.lr=0.01", *more), may_be_large=True)


def prompts(rng: random.Random, templates: Templates, root: Path) -> Case:
    """A file of prompts with mutations."""
    name = rng.choice(("prompts.txt", "prompts.jsonl"))
    templates.copy(root, "run", name)
    mutate_file(root / name, rng)
    more = rng.choice(((), ("--json",), ("--samples", "2")))
    return Case("prompts", ("generate", "run", name, "--tokens", "2", *more))


def command_line(rng: random.Random, templates: Templates, root: Path) -> Case:
    """A command line with hostile, missing and surplus arguments."""
    verb = rng.choice((*VERBS, rng.choice(ARGUMENTS), "helpp"))
    templates.copy(root, *SETTINGS, *CONFIGURATIONS, "prompts.txt", "prompts.jsonl")
    templates.copy(root, "tokens", "rows.jsonl", "text.txt", "folder", "run", "half")
    argv = [verb, *rng.choice((*FIRST.get(verb, ()), "x")).split()]
    for _ in range(rng.randrange(4)):
        flag = rng.choice((*FLAGS.get(verb, ()), rng.choice(NAMES[:10]), "--x"))
        argv += [flag] if rng.random() < 0.5 else [flag, rng.choice(ARGUMENTS)]
    if rng.random() < 0.3:
        rng.shuffle(argv)
    cleaned = tuple(each.replace("\x00", "") for each in argv)
    if cleaned and cleaned[0] in ("demo", "bench"):
        cleaned = ("status",)
    return Case(
        "command line",
        cleaned,
        ("run", "half", "x", "configs"),
        trains=_trains(cleaned),
        stdin=b"some text\n" * 9,
        serves=cleaned[:1] == ("watch",),
    )


def _trains(argv: tuple[str, ...]) -> bool:
    return argv[:1] != () and argv[0] in TRAINING and "--dry-run" not in argv


def jsonl(rng: random.Random, templates: Templates, root: Path) -> Case:
    """JSON lines with mutations, some of them compressed."""
    name = rng.choice(("rows.jsonl", "rows.jsonl", "rows.jsonl.gz"))
    templates.copy(root, name)
    path = root / name
    if name.endswith(".gz") or rng.random() < 0.3:
        path.write_bytes(mutated_bytes(path.read_bytes(), rng))
    else:
        lines = path.read_text().splitlines()
        tree = {"text": "a line of text", "n": 1, "inner": {"list": [1, 2]}}
        for _ in range(rng.choice((1, 2, 3))):
            lines[rng.randrange(len(lines))] = as_json(mutated(tree, rng, JSON_FRAGMENTS))
        path.write_text("\n".join(lines), "utf-8", "surrogatepass")
    return _prepare("jsonl", name, rng)


def other_source(rng: random.Random, templates: Templates, root: Path) -> Case:
    """Parquet, text, or a folder, with mutations; text also through standard input."""
    name = rng.choice(("rows.parquet", "rows.parquet", "text.txt", "folder", "-"))
    content = b""
    if name == "-":
        content = mutated_bytes((templates.path / "text.txt").read_bytes(), rng)
    else:
        templates.copy(root, name)
        mutate_directory(root / name, rng) if name == "folder" else mutate_file(root / name, rng)
    return _prepare("other source", name, rng, content)


def _prepare(kind: str, name: str, rng: random.Random, stdin: bytes = b"") -> Case:
    tokenizer = rng.choice((("bytes",), ("bytes",), ("bpe", "--vocab-size", "260")))
    fraction = rng.choice(("0", "0.1", "0.5"))
    return Case(
        kind,
        ("prepare", name, "--out", "new", "--val-fraction", fraction, "--tokenizer", *tokenizer),
        ("new",),
        stdin=stdin,
    )


def shards(rng: random.Random, templates: Templates, root: Path) -> Case:
    """A directory of token shards with mutations: shards, manifest, tokenizer."""
    name = rng.choice(("tokens", "tokens", "bpe", "nano", "llmc"))
    templates.copy(root, name, "run.yaml", "rows.jsonl")
    kept = mutate_directory(root / name, rng)
    if rng.random() < 0.3:
        argv = ("prepare", "rows.jsonl", "--out", name, "--tokenizer", "bytes", "--val-fraction", "0.2")
        return Case("shards", argv, (name,), kept=kept)
    return Case(
        "shards", ("train", "run.yaml", "--out", "new", f"train.data={name}", "train.steps=1"), ("new",), trains=True
    )


def run_directory(rng: random.Random, templates: Templates, root: Path) -> Case:
    """The directory of a run with mutations, trained further or generated from."""
    name = rng.choice(("run", "run", "done"))
    templates.copy(root, name, "tokens", "run.yaml")
    kept = mutate_directory(root / name, rng)
    if rng.random() < 0.6:
        return Case("run directory", ("train", "run.yaml", "--out", name), (name,), trains=True, kept=kept)
    if rng.random() < 0.2:
        return Case("run directory", ("capacity", name), may_be_large=True)
    return Case("run directory", ("generate", name, "--tokens", "2", "--prompt", "To"))


def study_directory(rng: random.Random, templates: Templates, root: Path) -> Case:
    """The directory of a study with mutations, looked at, swept further or reported."""
    name = rng.choice(("study", "half", "half"))
    templates.copy(root, name, "tokens", "study.yaml")
    kept = mutate_directory(root / name, rng)
    verb = rng.choices(("status", "dry-run", "sweep", "coordcheck", "report"), (60, 15, 15, 7, 3))[0]
    match verb:
        case "status":
            return Case("study directory", ("status", name))
        case "report":
            return Case("study directory", ("report", name), (name,), kept=kept)
        case "coordcheck":
            argv = ("coordcheck", "study.yaml", "--out", f"{name}/coordcheck", "--steps", "3")
            return Case("study directory", argv, (name,), trains=True, kept=kept)
        case _:
            more = ("--dry-run",) if verb == "dry-run" else ()
            argv = ("sweep", "study.yaml", "--out", name, "--workers", "1", *more)
            return Case("study directory", argv, (name,), trains=_trains(argv), kept=kept)


def hostile_paths(rng: random.Random, templates: Templates, root: Path) -> Case:
    """Valid commands whose paths are of another kind: FIFOs, loops, devices, names with control characters."""
    templates.copy(
        root, "run.yaml", "tokens", "rows.jsonl", "study.yaml", "half", "base.yaml", "target.yaml", "run", "config.json"
    )
    odd = root / rng.choice(("fifo", "loop", "dangling", "null", "file", "\x1b[31mred", "a\nb", "\udcff", "x" * 200))
    match odd.name:
        case "fifo":
            os.mkfifo(odd)
        case "loop":
            odd.symlink_to("loop")
        case "dangling":
            odd.symlink_to("nowhere")
        case "null":
            odd.symlink_to("/dev/null")
        case _:
            odd.write_bytes(rng.choice((b"", b"{}", b"text " * 100)))
    name = odd.name
    argv = rng.choice(
        (
            ("train", name, "--out", "new"),
            ("train", "run.yaml", "--out", name),
            ("train", "run.yaml", "--out", f"{name}/x"),
            ("train", "run.yaml", "--out", "new", f"train.data={name}"),
            ("prepare", name, "--out", "new", "--tokenizer", "bytes"),
            ("prepare", "rows.jsonl", "--out", name, "--tokenizer", "bytes"),
            ("status", name),
            ("report", name),
            ("generate", name),
            ("sweep", name, "--out", "new"),
            ("sweep", "study.yaml", "--dry-run", "--out", name),
            ("coordcheck", "study.yaml", "--out", name, "--steps", "3"),
            ("plan", "--base", name, "--target", "target.yaml"),
            ("theory", "solve", name),
            ("init", name),
            ("show", name),
            ("capacity", name),
            ("plan", "--hf", name, "config.json", "hps.lr=0.01"),
            ("generate", "run", name, "--tokens", "2"),
            ("watch", name, "--port", "0"),
        )
    )
    return Case("path", argv, ("new",), trains=_trains(argv), serves=argv[0] == "watch")


# Kinds with the share of cases that each gets.
KINDS: dict[Kind, int] = {
    settings_file: 18,
    override: 12,
    command_line: 14,
    configuration: 5,
    prompts: 3,
    jsonl: 8,
    other_source: 8,
    shards: 8,
    run_directory: 10,
    study_directory: 18,
    hostile_paths: 6,
}


def make_case(seed: str, templates: Templates, root: Path) -> Case:
    """Make the case of a seed in an empty directory."""
    rng = random.Random(seed)
    return rng.choices(list(KINDS), list(KINDS.values()))[0](rng, templates, root)
