"""Print all settings of a file after overrides and defaults, as YAML that loads back to the same settings.

FILE is a run, study, base, target or theory file; its sections say which of them. The marks `default` and `override`
say where a value comes from; values without a mark are those of FILE. Paths are absolute.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from expertp.config import load_run, load_spec, read_base, read_target, section_names
from expertp.errors import printable
from expertp.spec import RunSpec, Spec
from expertp.study.load import load_study
from expertp.study.spec import StudySpec
from expertp.util.plain_yaml import to_yaml

EXAMPLES = """\
  expertp show configs/study.yaml
  expertp show configs/run.yaml model.n_embd=256 train.steps=500 --json
"""
DEFAULT, OVERRIDE = "default", "override"
# Column of the marks, and the largest distance to them.
MARK_COLUMN = 32

Sections = Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """The settings of a file.

    Args:
        kind: run, study, base, target or theory.
        tree: all settings as plain values, by section.
        marks: "default" or "override", by section or `section.key`.
    """

    kind: str
    tree: dict[str, Any]
    marks: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE", help="a run, study, base, target or theory file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes, such as train.steps=500")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the settings."""
    found = settings(args.file, args.overrides)
    if args.json:
        marked = {mark: [name for name in found.marks if found.marks[name] == mark] for mark in (DEFAULT, OVERRIDE)}
        tree = json.loads(json.dumps(found.tree), parse_constant=str)  # JSON has no infinity
        print(json.dumps({"kind": found.kind, "settings": tree, **marked}, indent=2))
    else:
        print(f"# {found.kind} file {printable(args.file)}; values without a mark are those of the file")
        print(as_marked_yaml(found), end="")
    return 0


def settings(path: str, overrides: Sequence[str] = ()) -> Settings:
    """Read a file of any kind, and find out where each of its values comes from."""
    kind = kind_of(section_names(path))
    sections, given = LOADERS[kind](path, overrides)
    dotted = [text.partition("=")[0].split(".") for text in overrides]
    changed = {".".join(parts[:2]) for parts in dotted} | {parts[0] for parts in dotted if len(parts) == 1}
    marks: dict[str, str] = {}
    for name, value in sections.items():
        if name in changed:
            marks[name] = OVERRIDE
        elif name not in given:
            marks[name] = DEFAULT
        for key in type(value).model_fields if isinstance(value, Spec) else value if isinstance(value, dict) else ():
            if f"{name}.{key}" in changed:
                marks[f"{name}.{key}"] = OVERRIDE
            elif isinstance(value, Spec) and key not in value.model_fields_set and name in given:
                marks[f"{name}.{key}"] = DEFAULT
    return Settings(kind, {name: _plain(value) for name, value in sections.items()}, marks)


def as_marked_yaml(found: Settings) -> str:
    """Return settings as YAML in which comments mark defaults and overrides."""
    lines = []
    for name, value in found.tree.items():
        if isinstance(value, dict) and value:
            lines.append(_marked(f"{name}:", found.marks.get(name)))
            for key, inner in value.items():
                first, *rest = to_yaml({key: inner}).splitlines()
                lines += [_marked(f"  {first}", found.marks.get(f"{name}.{key}")), *(f"  {line}" for line in rest)]
        else:
            lines.append(_marked(to_yaml({name: value}).rstrip("\n"), found.marks.get(name)))
    return "\n".join([*lines, ""])


def _marked(line: str, mark: str | None) -> str:
    return f"{line:<{MARK_COLUMN}}  # {mark}" if mark else line


def _plain(value: Any) -> Any:
    """Return a field of a spec as plain values."""
    if isinstance(value, Spec):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def kind_of(names: Iterable[str]) -> str:
    """Return the kind of file that has all these sections, or most of them."""
    known = {
        "target": {"model"},
        "base": {"model", "hps"},
        "run": set(RunSpec.model_fields),
        "study": {*StudySpec.model_fields, *StudySpec.earlier_names},
    }
    kind = min(known, key=lambda kind: len({*names} - known[kind]))
    if {*names} <= known[kind]:
        return kind

    from expertp.theory.spec import TheorySpec

    return "theory" if len({*names} - {*TheorySpec.model_fields}) < len({*names} - known[kind]) else kind


def _fields(spec: Spec) -> tuple[Sections, set[str]]:
    return {name: getattr(spec, name) for name in type(spec).model_fields}, spec.model_fields_set


def _base(path: str, overrides: Sequence[str]) -> tuple[Sections, set[str]]:
    model, hps = read_base(path, overrides)
    return {"model": model, "hps": hps}, {"model", "hps"}


def _target(path: str, overrides: Sequence[str]) -> tuple[Sections, set[str]]:
    return {"model": read_target(path, overrides)}, {"model"}


def _run(path: str, overrides: Sequence[str]) -> tuple[Sections, set[str]]:
    sections, given = _fields(load_run(path, overrides))
    has_base = "base" in section_names(path) or any(text.startswith("base.") for text in overrides)
    return sections, given if has_base else given - {"base"}


def _study(path: str, overrides: Sequence[str]) -> tuple[Sections, set[str]]:
    return _fields(load_study(path, overrides))


def _theory(path: str, overrides: Sequence[str]) -> tuple[Sections, set[str]]:
    from expertp.theory.spec import TheorySpec

    return _fields(load_spec(TheorySpec, path, overrides))


LOADERS: Mapping[str, Callable[[str, Sequence[str]], tuple[Sections, set[str]]]] = {
    "run": _run,
    "study": _study,
    "base": _base,
    "target": _target,
    "theory": _theory,
}
