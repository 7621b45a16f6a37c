"""YAML to specs: sections, `a.b=c` overrides, errors that name the place, and content hashes."""

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError

from expertp.errors import LONGEST_VALUE, InputError, did_you_mean, printable, shortened, shown
from expertp.spec import BaseHPs, Model, ModelSpec, ParallelSpec, RunSpec, Spec, TrainSpec
from expertp.util.plain_yaml import LARGEST_YAML, NOT_YAML, read_yaml

SpecT = TypeVar("SpecT", bound=Spec)

# Fields that do not change a run's numbers (paths, checkpoint times, layout); they are not part of its identity.
OPERATIONAL = {
    "train": {"data", "checkpoint_seconds", "checkpoint_steps"},
    "parallel": frozenset(ParallelSpec.model_fields),
}

# Messages for values of the wrong type, by the prefix of pydantic's error type.
KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "tuple": "must be a list, such as [0, 1]",
    "dict": "must contain keys and values",
}


def load_base(path: str | Path, overrides: Iterable[str] = ()) -> tuple[ModelSpec, BaseHPs]:
    """Read a base file with the sections `model:` and `hps:`; overrides address `hps.*`."""
    model, hps = read_base(path, overrides)
    return _reference(model, path), hps


def load_target(path: str | Path, overrides: Iterable[str] = ()) -> ModelSpec:
    """Read a target file with the section `model:`; overrides address `model.*`."""
    return _reference(read_target(path, overrides), path)


def read_base(path: str | Path, overrides: Iterable[str] = ()) -> tuple[Model, BaseHPs]:
    """Read a base file, whose model may be of any kind."""
    tree = _read_model_file(path)
    _apply(tree, overrides, {"hps": BaseHPs})
    for section in ("model", "hps"):
        if section not in tree:
            raise InputError(f"{path}: section '{section}:' is missing; a base file has `model:` and `hps:`")
    return build(Model, tree["model"], f"{path}: model"), build(BaseHPs, tree["hps"], f"{path}: hps")


def read_target(path: str | Path, overrides: Iterable[str] = ()) -> Model:
    """Read a target file, whose model may be of any kind."""
    tree = _read_model_file(path)
    if "hps" in tree:
        raise InputError(f"{path}: section 'hps:' is not allowed in a target; move it to the base file")
    _apply(tree, overrides, {"model": Model})
    if "model" not in tree:
        raise InputError(f"{path}: section 'model:' is missing; a target file has `model:`")
    return build(Model, tree["model"], f"{path}: model")


def _read_model_file(path: str | Path) -> dict[str, Any]:
    """Return the sections of a base or target file; relative paths start at its directory."""
    tree = _read_sections(path, {"model": Model, "hps": BaseHPs})
    if isinstance(tree.get("model"), dict):
        tree["model"] = _anchored(Model, tree["model"], os.path.dirname(path))
    return tree


def _reference(model: Model, path: str | Path) -> ModelSpec:
    """Return a model if it is a reference model: the plan of any other one comes from its tensors."""
    if not isinstance(model, ModelSpec):
        raise InputError(f"{path}: model: is a model of transformers; plan it by its config.json with --hf BASE TARGET")
    return model


def hps_from_overrides(overrides: Iterable[str]) -> BaseHPs:
    """Return hyperparameters that are given as overrides only.

    >>> hps_from_overrides(["hps.lr=1/64"]).lr
    0.015625
    """
    tree: dict[str, Any] = {}
    _apply(tree, overrides, {"hps": BaseHPs})
    return build(BaseHPs, tree.get("hps", {}), "hps")


def load_run(path: str | Path, overrides: Iterable[str] = ()) -> RunSpec:
    """Read a run file with the sections `model:`, `hps:`, `train:`, `base:` (default: the model) and `parallel:`.

    A relative path in the file starts at the file's directory, one in an override at the working directory.
    """
    fields = {name: field.annotation for name, field in RunSpec.model_fields.items()}
    tree = _anchored(RunSpec, _read_sections(path, fields), os.path.dirname(path))
    # Overrides of the base come last: without a section `base:` they start from the overridden model.
    _apply(tree, sorted(overrides, key=lambda text: text.startswith("base.")), fields)
    return run_from_dict(_anchored(RunSpec, tree, ""), str(path))


def load_spec(
    spec: type[SpecT], path: str | Path | None, overrides: Iterable[str] = (), record: str | None = None
) -> SpecT:
    """Read a file whose sections are the fields of a spec; without a file, all fields start at their defaults.

    A relative path in the file starts at the file's directory, one in an override at the working directory. With
    `record`, the file may also be a record of the program that holds the sections under this key.
    """
    fields = {name: field.annotation for name, field in spec.model_fields.items()}
    tree: dict[str, Any] = {}
    if path is not None:
        whole = _read_mapping(path, f"the sections {', '.join(fields)}")
        recorded = whole.get(record) if record is not None and "format" in whole else None
        content = _renamed(recorded if isinstance(recorded, dict) else whole, spec.earlier_names)
        tree = _checked_sections(content, path, fields)
        if recorded is None:  # the paths of a record are as the program uses them
            tree = _anchored(spec, tree, os.path.dirname(path))
    return spec_from_sections(spec, tree, overrides, f"{path}:" if path is not None else "command line:")


def spec_from_sections(
    spec: type[SpecT], sections: Mapping[str, Any], overrides: Iterable[str] = (), where: str = "command line:"
) -> SpecT:
    """Build a spec from its sections as plain values; relative paths start at the working directory."""
    tree = dict(sections)
    _apply(tree, overrides, {name: field.annotation for name, field in spec.model_fields.items()})
    return build(spec, _anchored(spec, tree, ""), where)


def run_from_dict(tree: Mapping[str, Any], where: str) -> RunSpec:
    """Build a run from its sections; `base` defaults to the model itself."""
    for section in ("model", "hps", "train"):
        if section not in tree:
            raise InputError(f"{where}: section '{section}:' is missing; a run file has `model:`, `hps:` and `train:`")
    # Validate section by section first, so that an error names the section in the file.
    sections: dict[str, type[Spec]] = {
        **{"model": Model, "base": Model, "hps": BaseHPs},
        **{"train": TrainSpec, "parallel": ParallelSpec},
    }
    for section, spec in sections.items():
        if section in tree:
            build(spec, tree[section], f"{where}: {section}")
    return build(RunSpec, {"base": tree["model"], **tree}, f"{where}:")


def split_overrides(overrides: Iterable[str], sections: Mapping[str, type[Spec]]) -> dict[str, list[str]]:
    """Group `section.key=value` strings by section; raise `InputError` for other strings."""
    by_section: dict[str, list[str]] = {section: [] for section in sections}
    for text in overrides:
        section = text.partition("=")[0].partition(".")[0]
        if "=" not in text or section not in by_section:
            raise InputError(f"{shown(text)} is not an override; {_override_hint(text, sections)}")
        by_section[section].append(text)
    return by_section


def build(spec: type[SpecT], data: object, where: str) -> SpecT:
    """Validate plain values into a spec; errors are one line that names the place and the closest key.

    >>> build(ModelSpec, {"n_embed": 64}, "model")
    Traceback (most recent call last):
    expertp.errors.InputError: model.n_embed: unknown key; did you mean 'n_embd'?
    """
    spec = spec.kind_of(data)
    if isinstance(data, Mapping):
        data = _renamed(data, spec.earlier_names)
    _check_keys(spec, data, where)
    try:
        return spec.model_validate(data)
    except ValidationError as error:
        raise InputError(_first_line(error, where)) from None


def run_id(run: RunSpec, data_hash: str) -> str:
    """Return the identity of a run: a hash of everything that determines its numbers, including the data."""
    tree = run.to_dict()
    for section, fields in OPERATIONAL.items():
        tree[section] = {key: value for key, value in tree[section].items() if key not in fields}
        if not tree[section]:
            del tree[section]
    return content_hash({"run": tree, "data": data_hash})


def first_difference(there: RunSpec, here: RunSpec, ignored: Mapping[str, Iterable[str]] = MappingProxyType({})) -> str:
    """Return the first setting in which two runs differ, as text, or an empty string; `ignored` has keys by section."""
    theirs = there.to_dict()
    for section, ours in here.to_dict().items():
        fields = ours if isinstance(ours, dict) else {"": ours}
        others = theirs[section] if isinstance(ours, dict) else {"": theirs[section]}
        for key in {**fields, **others}:
            if key not in ignored.get(section, ()) and fields.get(key) != others.get(key):
                name = f"{section}.{key}" if key else section
                return f"{name}={others.get(key)} there, {fields.get(key)} here"
    return ""


def content_hash(tree: object) -> str:
    """Return 16 hex digits of the SHA-256 of the canonical JSON of plain values."""
    canonical = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def section_names(path: str | Path) -> list[str]:
    """Return the names of the sections of a YAML file, known or not."""
    return list(sections_of(path))


def sections_of(path: str | Path) -> dict[str, Any]:
    """Return the sections of a YAML or JSON file, known or not, as plain values."""
    tree = _read_mapping(path, "a run, study, base, target or theory file")
    return {str(name): value for name, value in tree.items()}


def _read_sections(path: str | Path, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a YAML file as plain values; section names are checked, contents are not."""
    return _checked_sections(_read_mapping(path, f"the sections {', '.join(sections)}"), path, sections)


def _checked_sections(tree: dict[str, Any], path: str | Path, sections: Mapping[str, Any]) -> dict[str, Any]:
    for name in tree:
        if name not in sections:
            raise InputError(f"{path}: {_unknown(str(name), sections, 'section')}")
    return tree


def _read_mapping(path: str | Path, expected: str) -> dict[str, Any]:
    """Return the keys and values of a YAML file."""
    try:
        text = _read_text(Path(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; give a YAML file") from None
    try:
        tree = read_yaml(text)
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if tree is None:
        raise InputError(f"{path}: is empty; give {expected}")
    if not isinstance(tree, dict):
        raise InputError(f"{path}: expected {expected.removeprefix('the ')}, found {type(tree).__name__}")
    return tree


def _read_text(path: Path) -> str:
    """Return the text of a regular file; at most a little more than `read_yaml` accepts."""
    if path.is_dir():
        raise InputError(f"{path}: is a directory; give a YAML file")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is not a regular file; give a YAML file")
    try:
        with path.open("rb") as file:
            return file.read(4 * LARGEST_YAML + 1).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such file; `expertp init` writes starter files") from None


def _anchored(spec: type[Spec], tree: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Return a tree in which paths are absolute; relative ones start at `directory`, whose links are not followed."""
    anchored, spec = dict(tree), spec.kind_of(tree)
    for name, value in tree.items():
        field = spec.model_fields.get(name)
        inner = _spec_in(field.annotation) if field else None
        if inner is not None and isinstance(value, dict):
            anchored[name] = _anchored(inner, value, directory)
        elif name in spec.path_fields and isinstance(value, str) and value not in ("", *spec.path_fields[name]):
            anchored[name] = os.path.abspath(os.path.join(directory, value))
    return anchored


def _renamed(tree: Mapping[str, Any], earlier_names: Mapping[str, str]) -> dict[str, Any]:
    """Return a tree in which fields have the names of this version."""
    for earlier, name in earlier_names.items():
        if earlier in tree and name in tree:
            raise InputError(f"'{earlier}' is an earlier name of '{name}'; give only '{name}'")
    return {earlier_names.get(name, name): value for name, value in tree.items()}


def _apply(tree: dict[str, Any], overrides: Iterable[str], sections: Mapping[str, Any]) -> None:
    """Apply `a.b=c` overrides to a tree of sections; values are parsed as YAML.

    Sections are replaced, not changed in place, because YAML anchors can make two sections the same object.
    """
    for text in overrides:
        dotted, equals, raw = text.partition("=")
        section, dot, key = dotted.partition(".")
        spec = _spec_in(sections.get(section))
        if spec is not None and isinstance(sections[section], UnionType) and raw == "null" and not dot:
            spec = None  # null removes an optional section
        has_no_keys = section not in sections or (dot and not _has_keys(sections[section]))
        if not equals or has_no_keys or (spec is not None and not dot):
            raise InputError(f"{shown(text)} is not an override; {_override_hint(text, sections)}")
        try:
            value = read_yaml(raw)
        except NOT_YAML:
            raise InputError(f"{shown(text)}: the value is not valid YAML; quote it") from None
        if not dot:
            tree[section] = value
            continue
        before = tree.get(section, {})
        if section == "base" and "base" not in tree and isinstance(tree.get("model"), dict):
            before = tree["model"]  # without `base:` the model is its own base
        if not isinstance(before, dict):
            raise InputError(f"section '{section}:' must contain keys and values")
        tree[section] = {**before, **({key: value} if spec is None else _changed(before, key, value, spec, text))}


def _override_hint(text: str, sections: Mapping[str, Any]) -> str:
    """Return a hint for an invalid override: its key in the right section, the closest valid form, or all forms."""
    dotted, equals, _ = text.partition("=")
    name = dotted.partition(".")[0]
    found = [section for section, kind in sections.items() if name in _keys_of(kind)]
    if equals and found and name not in sections:
        return f"did you mean {' or '.join(f'{each}.{shortened(printable(text), LONGEST_VALUE)}' for each in found)}?"
    forms = {each: f"{each}.KEY=VALUE" for each, kind in sections.items() if _has_keys(kind)}
    forms |= {each: f"{each}=VALUE" for each in sections if each not in forms}
    near = difflib.get_close_matches(name.lower()[:LONGEST_VALUE], list(forms), n=1)
    if near and near[0] != name:
        return f"did you mean {forms[near[0]]}?"
    return f"write {', '.join(forms.values())}"


def _has_keys(kind: object) -> bool:
    """Return whether a section of this type contains keys and values."""
    return _spec_in(kind) is not None or get_origin(kind) is dict


def _keys_of(kind: object) -> Iterable[str]:
    """Return the keys that a section of this type may contain, where they are known."""
    if (spec := _spec_in(kind)) is not None:
        return spec.kind_of({}).model_fields
    names = get_args(kind)[0] if get_origin(kind) is dict else None
    return get_args(names) if get_origin(names) is Literal else ()


def _changed(before: Mapping[str, Any], key: str, value: Any, spec: type[Spec], text: str) -> dict[str, Any]:
    """Return the changed fields of a section; `constants.router_lr=1/16` changes one entry of `constants`."""
    field, dot, inner_key = key.partition(".")
    spec = spec.kind_of(before)
    if field not in spec.model_fields:
        raise InputError(f"{shown(text)}: {_unknown(field, spec.model_fields, 'key')}")
    if not dot:
        return {field: value}
    inner = before.get(field)
    if isinstance(inner, str) and inner != "ones":
        raise InputError(
            f"{shown(text)}: {text.partition('.')[0]}.{field} is the preset {shown(inner)}, which has no keys; "
            f"replace the whole field, for example {text.partition('.')[0]}.{field}='{{{inner_key}: {shown(value)}}}'"
        )
    return {field: {**(inner if isinstance(inner, dict) else {}), inner_key: value}}


def _check_keys(spec: type[Spec], data: object, where: str) -> None:
    if not isinstance(data, Mapping):
        raise InputError(f"{_place(where)}: expected keys and values, found {type(data).__name__}")
    spec = spec.kind_of(data)
    for key, value in data.items():
        field = spec.model_fields.get(str(key))
        if str(key) in spec.earlier_fields:
            continue
        if field is None:
            raise InputError(_place(where, _unknown(str(key), spec.model_fields, "key")))
        inner = _spec_in(field.annotation)
        if inner is not None and value is not None:
            _check_keys(inner, value, _place(where, str(key)))


def _spec_in(annotation: object) -> type[Spec] | None:
    """Return the spec type of a field, optional or not; None for other fields."""
    for kind in get_args(annotation) if isinstance(annotation, UnionType) else (annotation,):
        if isinstance(kind, type) and issubclass(kind, Spec):
            return kind
    return None


def _place(where: str, *inside: str) -> str:
    """Return the name of a place inside `where`, which is "FILE: section", or "FILE:" for the top level."""
    if where.endswith(":"):
        return f"{where} {'.'.join(inside)}" if inside else where[:-1]
    return ".".join([where, *inside])


def _unknown(name: str, known: Iterable[str], kind: str) -> str:
    return f"{shortened(name, LONGEST_VALUE)}: unknown {kind}; {did_you_mean(name, known)}"


def _first_line(error: ValidationError, where: str) -> str:
    """Return the first of pydantic's errors as one line: place, what is wrong, value seen."""
    errors = error.errors()
    # A union reports an error per branch; the deepest one is closest to the user's intent.
    first = max((e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]), key=lambda e: len(e["loc"]))
    place = _place(where, *(shortened(str(part), LONGEST_VALUE) for part in first["loc"] if "[" not in str(part)))
    if first["type"] == "value_error":
        return f"{place}: {first['ctx']['error']}"
    if first["type"] == "missing":
        return f"{place}: is missing; give it a value"
    if first["type"] == "too_short":
        return f"{place}: is empty; give at least one value"
    message = KINDS.get(first["type"].partition("_")[0], first["msg"][0].lower() + first["msg"][1:])
    return f"{place}: {message}, not {'null' if first['input'] is None else shown(first['input'])}"
