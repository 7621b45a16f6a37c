"""Read studies from files and plain trees, and check that they can be expanded."""

from collections.abc import Iterable
from pathlib import Path

from expertp.config import build, load_spec
from expertp.errors import InputError
from expertp.study.cells import expand
from expertp.study.spec import StudySpec


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> StudySpec:
    """Read a study file.

    Args:
        path: a YAML file with the sections of `StudySpec`; `expertp init` writes a commented one. The study.json of a
            study's directory works too: the study as it was run, with all overrides.
        overrides: changes such as `train.steps=100` or `grids.log2_lr=[-8, -7]`.

    Returns:
        The study; a study that cannot be expanded into cells is an `InputError`.

    >>> from importlib.resources import files
    >>> study = load_study(files("expertp") / "configs" / "study.yaml", ["seeds=[0, 1]"])
    >>> study.name, tuple(study.axes), study.seeds
    ('first', ('width', 'depth', 'experts', 'alpha'), (0, 1))
    """
    return _checked(load_spec(StudySpec, path, overrides, record="study"), f"{path}:")


def build_study(tree: object, where: str) -> StudySpec:
    """Return the study of a plain tree; error messages start with `where`."""
    return _checked(build(StudySpec, tree, where), where)


def _checked(study: StudySpec, where: str) -> StudySpec:
    try:
        expand(study)
    except InputError as error:
        raise InputError(f"{where} {error}") from None
    return study
