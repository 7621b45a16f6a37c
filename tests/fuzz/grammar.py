"""Hostile values, and mutations of trees, bytes and directories. All choices come from one random generator."""

import json
import math
import os
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

FUTURE = 4_000_000_000  # a modification time in 2096
SPARSE_BYTES = 5 * 2**28
# The memory of the fuzzer itself has no limit: several copies of a sparse file would be several GB.
LARGEST_REWRITTEN = 2**24
# Replacements of a value in YAML or JSON.
VALUES: tuple[Any, ...] = (
    *(None, True, False, "", " ", "x", 0, -1, 1, 2, 3, 7, 8, 12, 0.5, 1.5, -0.0, math.nan, math.inf, -math.inf),
    *(2**31, 2**53 + 1, 2**63, 10**19, 10**30, 10**400, -(10**400), 1e-300, 1e300, 1e-45),
    *("1/0", "1/3", "0/0", "1e400", "nan", "inf", "true", "null", "~", "auto", "ones", "paper", "../..", "/dev/null"),
    *(
        "\x1b[31mred\x1b[0m",
        "\u202eright to left",
        "a\nb",
        "a\x00b",
        "\ud800",
        "x" * 5000,
        "$\\bad$",
        "a/b",
        "_a",
        "%s{}",
    ),
    *([], {}, [[]], [None], [1, 1], [2, 1], {"a": {}}, {"": 0}, [[1], {}], ["log2_lr"] * 2, list(range(2000))),
)
# Fragments that no serializer writes.
YAML_FRAGMENTS = (
    *(
        "? [a]",
        "!!bool maybe",
        "!!int ''",
        "!!float x",
        "!!timestamp 1",
        "!!python/object/apply:os.getcwd []",
        "!!set {a}",
    ),
    *(
        "&a [*a]",
        "*nope",
        "&b {<<: *b}",
        "{<<: 1}",
        "{",
        "}",
        "[",
        "\t",
        "@",
        "`",
        "%",
        "|",
        ">",
        "- a",
        "!",
        "!<x> y",
        "&",
    ),
    *("9" * 5000, "-" + "9" * 400, "[" * 3000, "{a: " * 3000, "1e", ".inf", "-.inf", ".nan", "0x10", "0o7", "1_000"),
    *(
        "2024-01-01",
        "12:30:45",
        "=",
        "<<",
        "'",
        '"',
        '"\\ud800"',
        '"\\x1b[2J"',
        "[&c 1, *c, *c]",
        "{? {a: 1} : 2}",
        "---",
    ),
    "[" + "&d [1,1,1,1,1,1,1,1], &e [*d,*d,*d,*d,*d,*d,*d,*d], &f [*e,*e,*e,*e,*e,*e,*e,*e], "
    "&g [*f,*f,*f,*f,*f,*f,*f,*f], &h [*g,*g,*g,*g,*g,*g,*g,*g], &i [*h,*h,*h,*h,*h,*h,*h,*h], *i]",
)
JSON_FRAGMENTS = (
    *("9" * 5000, "9" * 400, "[" * 100_000, '{"a":' * 5000, "NaN", "-Infinity", "1e999", "-", "tru", "'x'", "01", "+1"),
    *('{"a": 1, "a": 2}', '"\\ud800"', '"\\u0000"', '"\x01"', "[1,]", "{", "", '"unfinished', "\ufeff1", "1 2"),
)
BYTES = (
    b"\x00",
    b"\xff",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\x1b[2J",
    b"\n",
    b"\r\n",
    b'"',
    b"{",
    b"[" * 500,
    b"9" * 5000,
)
NAMES = (
    *("x", "a b", "-rf", "--help", "~", "*", "$(id)", "%s", "é", "x" * 200, "a\nb", "\x1b[31mred", "\udcff", ".hidden"),
    *("step-00000004.bak", "step-4", "step-x", "step-99999999", ".partial-00000004", "abc.json", "12.json", "0.json"),
)
# Names that the program gives its own files: an unfinished checkpoint, and a lease.
OWN_NAME = re.compile(r"/\.partial-\d{8}$|leases/[^/]+/\d+\.json$")


class Fragment(str):
    """A text that is written as it is."""


def pick(rng: random.Random, fragments: tuple[str, ...]) -> Any:
    """Return a hostile value or fragment; later mutations may change it in place, so it is a copy."""
    return Fragment(rng.choice(fragments)) if rng.random() < 0.4 else deepcopy(rng.choice(VALUES))


def mutated(tree: Any, rng: random.Random, fragments: tuple[str, ...]) -> Any:
    """Return a copy of a tree with one to three mutations."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return pick(rng, fragments)
        parent, key = rng.choice(places)
        _mutate(parent, key, rng, fragments)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and the key of every value in a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _mutate(parent: Any, key: Any, rng: random.Random, fragments: tuple[str, ...]) -> None:
    value = parent[key]
    match rng.choice(("replace", "replace", "scale", "delete", "rename", "wrap", "add", "swap")):
        case "scale" if isinstance(value, int | float) and not isinstance(value, bool):
            parent[key] = rng.choice((-value, value * 2, value * 3, value // 3, value + 1, value * 10**6, str(value)))
        case "delete":
            del parent[key]
        case "rename" if isinstance(parent, dict):
            parent[rng.choice((key[:-1], key.upper(), key + "s", "", "x", key + "\x1b", key * 40))] = parent.pop(key)
        case "wrap":
            parent[key] = rng.choice(([value], [value, deepcopy(value)], {"x": value}, {str(key): value}))
        case "add" if isinstance(parent, dict):
            parent[rng.choice(("x", "steps", "model", "n_embd", "Ne"))] = pick(rng, fragments)
        case "swap":
            place = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
            parent[key], parent[place] = parent[place], value
        case _:
            parent[key] = pick(rng, fragments)


def as_yaml(tree: Any) -> str:
    """Write a tree as YAML, one section per line, with its fragments as they are."""
    if not isinstance(tree, dict):
        return _flow(tree, yaml=True)
    return "\n".join(f"{_key(key)}: {_flow(value, yaml=True)}" for key, value in tree.items()) + "\n"


def as_json(tree: Any) -> str:
    """Write a tree as JSON, with its fragments as they are."""
    return _flow(tree, yaml=False)


def _key(key: str) -> str:
    return key if key.isidentifier() else json.dumps(key)


def _flow(tree: Any, yaml: bool) -> str:
    if isinstance(tree, Fragment):
        return tree
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_flow(value, yaml)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(_flow(value, yaml) for value in tree) + "]"
    if yaml and isinstance(tree, float) and not math.isfinite(tree):
        return ".nan" if math.isnan(tree) else ".inf" if tree > 0 else "-.inf"
    return json.dumps(tree)


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return a copy of some bytes with one to three mutations."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        start = rng.randrange(len(content) + 1)
        stop = min(len(content), start + rng.choice((1, 1, 2, 8, 100, len(content))))
        before, middle, after = content[:start], content[start:stop], content[stop:]
        match rng.choice(("flip", "flip", "delete", "repeat", "insert", "truncate", "append", "digit", "empty")):
            case "flip" if middle:
                content = before + bytes([middle[0] ^ (1 << rng.randrange(8))]) + middle[1:] + after
            case "delete":
                content = before + after
            case "repeat":
                content = before + middle * 2 + after
            case "truncate":
                content = before
            case "append":
                content += rng.choice(BYTES)
            case "digit":
                content = content.replace(rng.choice(b"0123456789").to_bytes(), b"7", 1)
            case "empty":
                content = b""
            case _:
                content = before + rng.choice(BYTES) + middle + after
    return content


def mutate_file(path: Path, rng: random.Random) -> None:
    """Mutate a file: as JSON if it is JSON, else as bytes; of a large file a few bytes, where they are."""
    if (size := path.stat().st_size) > LARGEST_REWRITTEN:
        with path.open("r+b") as file:
            file.seek(rng.randrange(size))
            file.write(rng.choice(BYTES))
        return
    content = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.7:
        try:
            path.write_text(as_json(mutated(json.loads(content), rng, JSON_FRAGMENTS)), "utf-8", "surrogatepass")
            return
        except (ValueError, RecursionError):  # an earlier mutation has damaged it
            pass
    path.write_bytes(mutated_bytes(content, rng))


def mutate_directory(root: Path, rng: random.Random) -> tuple[str, ...]:
    """Mutate one to three files or folders of a directory; return what was put beside them, with the root's name."""
    added = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = _pick_entry(root, rng)
        if path is None:
            break
        added.append(_mutate_entry(path, rng))
    names = [os.fsencode(path.relative_to(root.parent)).decode("latin-1") for path in added if path is not None]
    return tuple(name for name in names if not OWN_NAME.search(name))


def _pick_entry(folder: Path, rng: random.Random) -> Path | None:
    """Return an entry below a folder: every kind of file or folder is as likely, however many there are of it."""
    kinds = defaultdict[str, list[Path]](list)
    for path in sorted(path for path in folder.rglob("*") if path.exists() and not path.is_symlink()):
        kinds[re.sub(r"[0-9a-f]{8}|[0-9]+", "#", str(path.relative_to(folder)))].append(path)
    return rng.choice(rng.choice(list(kinds.values()))) if kinds else None


def _mutate_entry(path: Path, rng: random.Random) -> Path | None:
    """Mutate a file or folder; return the one that was put beside it."""
    is_regular = path.is_file()
    match rng.choice((*["content"] * 4, *["copy"] * 3, *["stray"] * 2, "remove", "kind", "future", "sparse")):
        case "content" if is_regular:
            mutate_file(path, rng)
        case "remove":
            _remove(path)
        case "copy":
            target = path.with_name(path.name + rng.choice((".bak", "~", ".1", ".json")))
            existed = os.path.lexists(target)
            with suppress(OSError):  # a link or a FIFO that an earlier mutation made
                if path.is_dir():
                    shutil.copytree(path, target, symlinks=True, copy_function=_copy)
                elif is_regular:
                    _copy(path, target)
            return None if existed else target
        case "kind":
            _remove(path)
            _make_other_kind(path, rng)
        case "future":
            os.utime(path, (FUTURE, FUTURE))
        case "sparse" if is_regular:
            with path.open("ab") as file:
                # Shards are mapped, which counts as memory of the process but uses none.
                file.truncate(SPARSE_BYTES if path.suffix != ".bin" else SPARSE_BYTES // 4)
        case _:
            name = rng.choice(NAMES) + rng.choice(("", "", ".json"))
            stray = (path if path.is_dir() else path.parent) / name
            if not stray.exists():
                stray.write_bytes(rng.choice((b"", b"{}", b"[]", b"\xff", b"x" * 1000)))
                return stray
    return None


def _copy(source: str | Path, target: str | Path) -> None:
    """Copy a file; the copy of a large one is sparse."""
    if (size := os.path.getsize(source)) <= LARGEST_REWRITTEN:
        shutil.copy(source, target)
        return
    with open(target, "wb") as file:
        file.truncate(size)


def _make_other_kind(path: Path, rng: random.Random) -> None:
    match rng.choice(("directory", "fifo", "loop", "dangling", "outside")):
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to("nowhere")
        case _:
            path.symlink_to("/dev/null")


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
