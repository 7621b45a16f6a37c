"""YAML to specs: sections, `a.b=c` overrides, errors that name the place, and content hashes."""

import difflib
import hashlib
import json
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError

from expertp.errors import InputError, did_you_mean
from expertp.spec import BaseHPs, ModelSpec, RunSpec, Spec, TrainSpec

SpecT = TypeVar("SpecT", bound=Spec)

# Fields that do not change a run's numbers (paths, checkpoint times); they are not part of its identity.
OPERATIONAL = {"train": {"data", "checkpoint_seconds", "checkpoint_steps"}}


# PyYAML raises ValueError for malformed dates and tagged numbers, RecursionError for deeply nested brackets.
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
NUMBERS = {
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (r"[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)", "-+.0123456789"),
}
# Messages for values of the wrong type, by the prefix of pydantic's error type.
KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "tuple": "must be a list, such as [0, 1]",
    "dict": "must contain keys and values",
}


class _Loader(yaml.SafeLoader):
    """YAML 1.2-like scalars: 1e-3 is a number, 1:30 and dates are strings. Duplicate keys are errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping and reject duplicate keys."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"key '{key.value}' appears twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if not tag.endswith((":timestamp", ":int", ":float"))]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, (_form, _first) in NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^({_form})$"), list(_first))


def read_yaml(text: str) -> Any:
    """Parse YAML into plain values; raises one of `NOT_YAML`.

    >>> read_yaml("{lr: 1e-3, note: 1:30}")
    {'lr': 0.001, 'note': '1:30'}
    """
    return yaml.load(text, Loader=_Loader)


def load_base(path: str | Path, overrides: Iterable[str] = ()) -> tuple[ModelSpec, BaseHPs]:
    """Read a base file with the sections `model:` and `hps:`; overrides address `hps.*`."""
    tree = _read_sections(path, {"model": ModelSpec, "hps": BaseHPs})
    _apply(tree, overrides, {"hps": BaseHPs})
    for section in ("model", "hps"):
        if section not in tree:
            raise InputError(f"{path}: section '{section}:' is missing; a base file has `model:` and `hps:`")
    return build(ModelSpec, tree["model"], f"{path}: model"), build(BaseHPs, tree["hps"], f"{path}: hps")


def load_target(path: str | Path, overrides: Iterable[str] = ()) -> ModelSpec:
    """Read a target file with the section `model:`; overrides address `model.*`."""
    tree = _read_sections(path, {"model": ModelSpec, "hps": BaseHPs})
    if "hps" in tree:
        raise InputError(f"{path}: section 'hps:' is not allowed in a target; move it to the base file")
    _apply(tree, overrides, {"model": ModelSpec})
    if "model" not in tree:
        raise InputError(f"{path}: section 'model:' is missing; a target file has `model:`")
    return build(ModelSpec, tree["model"], f"{path}: model")


def load_run(path: str | Path, overrides: Iterable[str] = ()) -> RunSpec:
    """Read a run file with the sections `model:`, `hps:`, `train:` and `base:` (default: the model itself)."""
    fields = {name: field.annotation for name, field in RunSpec.model_fields.items()}
    tree = _read_sections(path, fields)
    # Overrides of the base come last: without a section `base:` they start from the overridden model.
    _apply(tree, sorted(overrides, key=lambda text: text.startswith("base.")), fields)
    return run_from_dict(tree, str(path))


def load_spec(spec: type[SpecT], path: str | Path | None, overrides: Iterable[str] = ()) -> SpecT:
    """Read a file whose sections are the fields of a spec; without a file, all fields start at their defaults."""
    fields = {name: field.annotation for name, field in spec.model_fields.items()}
    tree = {} if path is None else _read_sections(path, fields, spec.earlier_names)
    _apply(tree, overrides, fields)
    return build(spec, tree, f"{path}:" if path is not None else "command line:")


def run_from_dict(tree: Mapping[str, Any], where: str) -> RunSpec:
    """Build a run from its sections; `base` defaults to the model itself."""
    for section in ("model", "hps", "train"):
        if section not in tree:
            raise InputError(f"{where}: section '{section}:' is missing; a run file has `model:`, `hps:` and `train:`")
    # Validate section by section first, so that an error names the section in the file.
    sections: dict[str, type[Spec]] = {"model": ModelSpec, "base": ModelSpec, "hps": BaseHPs, "train": TrainSpec}
    for section, spec in sections.items():
        if section in tree:
            build(spec, tree[section], f"{where}: {section}")
    return build(RunSpec, {"base": tree["model"], **tree}, f"{where}:")


def split_overrides(overrides: Iterable[str], sections: Iterable[str]) -> dict[str, list[str]]:
    """Group `section.key=value` strings by section; raise `InputError` for other strings."""
    by_section: dict[str, list[str]] = {section: [] for section in sections}
    for text in overrides:
        section = text.partition("=")[0].partition(".")[0]
        if "=" not in text or section not in by_section:
            raise InputError(f"'{text}' is not an override; {_override_hint(section, by_section)}")
        by_section[section].append(text)
    return by_section


def build(spec: type[SpecT], data: object, where: str) -> SpecT:
    """Validate plain values into a spec; errors are one line that names the place and the closest key.

    >>> build(ModelSpec, {"n_embed": 64}, "model")
    Traceback (most recent call last):
    expertp.errors.InputError: model.n_embed: unknown key; did you mean 'n_embd'?
    """
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
    return content_hash({"run": tree, "data": data_hash})


def content_hash(tree: object) -> str:
    """Return 16 hex digits of the SHA-256 of the canonical JSON of plain values."""
    canonical = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _read_sections(
    path: str | Path, sections: Mapping[str, Any], earlier_names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the sections of a YAML file as plain values; section names are checked, contents are not."""
    try:
        tree = read_yaml(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; `expertp init` writes starter files") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory; give a YAML file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}; give a YAML file") from None
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if tree is None:
        raise InputError(f"{path}: is empty; give the sections {', '.join(sections)}")
    if not isinstance(tree, dict):
        raise InputError(f"{path}: expected sections {', '.join(sections)}, found {type(tree).__name__}")
    tree = _renamed(tree, earlier_names or {})
    for name in tree:
        if name not in sections:
            raise InputError(f"{path}: {_unknown(str(name), sections, 'section')}")
    return tree


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
        names = [name for name, kind in sections.items() if _spec_in(kind) or get_origin(kind) is dict]
        if not equals or section not in sections or (dot and section not in names) or (spec is not None and not dot):
            plain = [name for name in sections if name not in names]
            raise InputError(f"'{text}' is not an override; {_override_hint(section, names, plain)}")
        try:
            value = read_yaml(raw)
        except NOT_YAML:
            raise InputError(f"'{text}': the value is not valid YAML; quote it") from None
        if not dot:
            tree[section] = value
            continue
        before = tree.get(section, {})
        if section == "base" and "base" not in tree and isinstance(tree.get("model"), dict):
            before = tree["model"]  # without `base:` the model is its own base
        if not isinstance(before, dict):
            raise InputError(f"section '{section}:' must contain keys and values")
        tree[section] = {**before, **({key: value} if spec is None else _changed(before, key, value, spec, text))}


def _override_hint(section: str, sections: Iterable[str], plain: Iterable[str] = ()) -> str:
    """Return a hint for an invalid override: the closest valid form, or all valid forms."""
    forms = {**{name: f"{name}.KEY=VALUE" for name in sections}, **{name: f"{name}=VALUE" for name in plain}}
    near = difflib.get_close_matches(section.lower(), list(forms), n=1)
    if near and near[0] != section:
        return f"did you mean {forms[near[0]]}?"
    return f"write {', '.join(forms.values())}"


def _changed(before: Mapping[str, Any], key: str, value: Any, spec: type[Spec], text: str) -> dict[str, Any]:
    """Return the changed fields of a section; `constants.router_lr=1/16` changes one entry of `constants`."""
    field, dot, inner_key = key.partition(".")
    if field not in spec.model_fields:
        raise InputError(f"'{text}': {_unknown(field, spec.model_fields, 'key')}")
    if not dot:
        return {field: value}
    inner = before.get(field)
    if isinstance(inner, str) and inner != "ones":
        raise InputError(
            f"'{text}': {text.partition('.')[0]}.{field} is the preset '{inner}', which has no keys; "
            f"replace the whole field, for example {text.partition('.')[0]}.{field}='{{{inner_key}: {value}}}'"
        )
    return {field: {**(inner if isinstance(inner, dict) else {}), inner_key: value}}


def _check_keys(spec: type[Spec], data: object, where: str) -> None:
    if not isinstance(data, Mapping):
        raise InputError(f"{_place(where)}: expected keys and values, found {type(data).__name__}")
    for key, value in data.items():
        field = spec.model_fields.get(str(key))
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
    return f"{name}: unknown {kind}; {did_you_mean(name, known)}"


def _first_line(error: ValidationError, where: str) -> str:
    """Return the first of pydantic's errors as one line: place, what is wrong, value seen."""
    errors = error.errors()
    # A union reports an error per branch; the deepest one is closest to the user's intent.
    first = max((e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]), key=lambda e: len(e["loc"]))
    place = _place(where, *(str(part) for part in first["loc"] if "[" not in str(part)))
    if first["type"] == "value_error":
        return f"{place}: {first['ctx']['error']}"
    if first["type"] == "missing":
        return f"{place}: is missing; give it a value"
    if first["type"] == "too_short":
        return f"{place}: is empty; give at least one value"
    message = KINDS.get(first["type"].partition("_")[0], first["msg"][0].lower() + first["msg"][1:])
    return f"{place}: {message}, not {'null' if first['input'] is None else repr(first['input'])}"
