"""YAML as plain values: bounded reading, and writing that reads back to equal values."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

from expertp.errors import shown

# Bounds of a YAML text: its characters, and its values when every alias is written out.
LARGEST_YAML = 2**18
MOST_VALUES = 10_000
# PyYAML raises ValueError for integers with too many digits, RecursionError for deeply nested brackets.
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
NUMBERS = {
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (r"[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)", "-+.0123456789"),
}


class _Loader(yaml.SafeLoader):
    """YAML 1.2-like scalars: 1e-3 is a number, 1:30 and dates are strings.

    Duplicate keys, keys that are not words, tags such as !!bool and aliases that multiply values are errors.
    """

    def get_single_data(self) -> Any:
        """Return the only document of the text as plain values; None if it is empty."""
        root = self.get_single_node()
        if root is None:
            return None
        self._count(root, {})
        return self.construct_document(root)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping and reject duplicate keys."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise _at(key, f"key {shown(key.value)} appears twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def _count(self, node: yaml.Node, counted: dict[int, int]) -> int:
        """Check a node and return the number of its values with every alias written out."""
        known = counted.get(id(node))
        if known is not None:
            if known == 0:
                raise _at(node, "a value contains itself")
            return known
        counted[id(node)] = 0  # being counted
        total = 1 + sum(self._count(child, counted) for child in self._children(node))
        if total > MOST_VALUES:
            raise _at(node, f"more than {MOST_VALUES} values")
        counted[id(node)] = total
        return total

    def _children(self, node: yaml.Node) -> list[yaml.Node]:
        """Return the values directly inside a node, which must have the tag that its form implies."""
        implied = (node.style is None, node.style is not None) if isinstance(node, yaml.ScalarNode) else True
        if node.tag != self.resolve(type(node), node.value, implied):  # type: ignore[no-untyped-call]
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise _at(node, f"tag {shown(tag)} is not supported; write the plain value")
        if isinstance(node, yaml.MappingNode):
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise _at(key, "a key must be a word or a number")
            return [each for pair in node.value for each in pair]
        return node.value if isinstance(node, yaml.SequenceNode) else []


def _at(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if not tag.endswith((":timestamp", ":int", ":float"))]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, (_form, _first) in NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^({_form})$"), list(_first))


def read_yaml(text: str) -> Any:
    """Parse YAML into plain values; raises one of `NOT_YAML`, also for a text that is too large.

    >>> read_yaml("{lr: 1e-3, note: 1:30}")
    {'lr': 0.001, 'note': '1:30'}
    """
    if len(text) > LARGEST_YAML:
        raise yaml.YAMLError(f"larger than {LARGEST_YAML >> 10} KiB")
    return yaml.load(text, Loader=_Loader)


class _Dumper(yaml.SafeDumper):
    """YAML that `read_yaml` reads back to equal values: strings that look like numbers are quoted, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value out wherever it appears."""
        del data
        return True


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    ),
)
_Dumper.add_representer(
    list, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)


def to_yaml(tree: object) -> str:
    """Return plain values as YAML that `read_yaml` reads back; a list is one line.

    >>> print(to_yaml({"name": "1e5", "axes": {"width": [64, 128]}}), end="")
    name: '1e5'
    axes:
      width: [64, 128]
    """
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=10**6))
