"""Imports point one way: a module may import only what stands to its left in LAYERS."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typecheck import WITH_SHAPES

SOURCE = Path(__file__).parents[1] / "src" / "expertp"

# From left to right; modules of one layer may not import each other.
LAYERS = (
    ("errors",),
    ("util",),
    ("spec",),
    ("rules", "theory"),
    ("plan", "config"),
    ("data", "model"),
    ("adapters",),
    ("capacity",),
    ("training",),
    ("study",),
    ("coordcheck", "analysis"),
    ("search",),
    ("figures",),
    ("report",),
    ("paper", "bench"),
    ("cli",),
)
# The same inside rooms whose modules build on each other; a module that is not listed comes after all others.
INSIDE = {
    "adapters": (
        ("axes", "programs"),
        ("roles",),
        ("family",),
        ("families",),
        ("description", "keys"),
        ("comparable", "describe"),
        ("hub",),
        ("spec",),
        ("fit",),
        ("balance", "planned", "precision", "verify"),
        ("trainer",),
        ("adapted", "export", "summary"),
    ),
    "capacity": (
        ("devices", "job"),
        ("anatomy", "load"),
        ("layout",),
        ("estimate",),
        ("search",),
    ),
    "training": (
        ("checkpoint_names", "ranks", "records", "resolution", "speed", "tracker_process"),
        ("parallel", "store"),
        ("optim", "run_model", "tensor_files"),
        ("coordinates",),
        ("checkpoints", "family_coordinates", "tail"),
        ("hugging_face", "reference"),
        ("build",),
        ("loop",),
        ("probes",),
        ("train",),
        ("generate", "trackers", "traffic"),
    ),
    "study": (
        ("spec",),
        ("cells",),
        ("cost", "early_stopping", "forecast", "load", "table"),
        ("results",),
        ("store",),
        ("executors.processes",),
        ("progress", "executors.local", "executors.slurm_jobs"),
        ("sweep", "executors.slurm", "executors.task"),
        ("executors.ray", "executors.worker"),
    ),
    "paper": (
        ("listing",),
        ("constants", "finding", "results"),
        ("collapse", "granularity", "transfer"),  # shared by several findings
        ("race",),
        ("bias_shift", "constants_loss", "fan_in_down", "fixed_topk", "joint_scale", "medium", "soft_router"),
        ("tradeoff_long", "transfer_quarter", "weight_decay"),
        ("horizon", "softmax", "transfer_twelfth"),  # use the study of another finding
        ("zero_shot",),
        ("loss_collapse", "scaling_fit", "speedrun", "tradeoff"),
        ("imbalance",),
        ("constants_load",),
        ("catalogue",),
        ("profile",),
        ("cost", "store"),
        ("page",),
    ),
}
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}
WITHOUT_TORCH = (
    *("errors", "spec", "config", "rules", "plan"),
    *("study.spec", "study.cells", "study.cost", "study.forecast", "study.load", "study.table", "study.store"),
    *("study.early_stopping", "study.results", "study.progress", "study.executors.slurm_jobs"),
    *("training.records", "training.resolution", "training.store", "cli.status"),
    *("paper.listing", "cli.paper"),
    *("adapters.axes", "adapters.roles", "adapters.families", "adapters.description", "adapters.comparable"),
    *("adapters.fit", "adapters.keys", "adapters.spec", "report.formulas", "report.planner", "cli.planner"),
    *("capacity.devices", "capacity.load", "capacity.search", "cli.capacity"),
)


def part_of(path: Path) -> str:
    """Return the top-level module that a file belongs to; the package's own file is `expertp`, its program `cli`."""
    top = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return {"__init__": "expertp", "__main__": "cli"}.get(top, top)


@cache
def imported_modules(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, anywhere in it."""
    package = ["expertp", *path.relative_to(SOURCE).parts[:-1]]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            # `from expertp import plan` imports a module, `from expertp.plan import Plan` a name of one.
            is_package = (SOURCE.parent / module.replace(".", "/")).is_dir()
            names |= {f"{module}.{alias.name}" for alias in node.names} if is_package else {module}
    return names


def imported_parts(path: Path) -> set[str]:
    """Return the top-level modules of expertp that a file imports."""
    return {name.split(".")[1] for name in imported_modules(path) if name.startswith("expertp.")}


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.heavy
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_to_the_left(path: Path) -> None:
    here = part_of(path)
    others = imported_parts(path) - {here}
    if here == "expertp":
        assert "cli" not in others, "the package re-exports what computes, not the command line"
        return
    assert here in RANK, f"{here} has no place yet; give it one in LAYERS of {Path(__file__).name}"
    wrong = {name for name in others if RANK.get(name, len(LAYERS)) >= RANK[here]}
    assert not wrong, f"{here} may not import {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("room", INSIDE)
def test_imports_inside_a_room_point_to_the_left(room: str) -> None:
    rank = {module: place for place, layer in enumerate(INSIDE[room]) for module in layer}
    modules = {
        ".".join(path.relative_to(SOURCE / room).with_suffix("").parts): path for path in FILES if room in path.parts
    }
    modules = {name: path for name, path in modules.items() if not name.endswith("__init__")}
    assert modules.keys() == rank.keys(), f"list all modules of {room} in INSIDE"
    for name, path in modules.items():
        found = {module.removeprefix(f"expertp.{room}.") for module in imported_modules(path)} & rank.keys()
        wrong = {other for other in found - {name} if rank[other] >= rank[name]}
        assert not wrong, f"{room}/{name} may not import {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_command_line_knows_the_command_line(path: Path) -> None:
    assert part_of(path) == "cli" or "cli" not in imported_parts(path)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_plans_names_no_torch(name: str) -> None:
    if name == "study.forecast":
        return  # imports torch in the function that times models
    assert not {
        module
        for module in imported_modules(SOURCE / f"{name.replace('.', '/')}.py")
        if module.split(".")[0] == "torch"
    }


def test_what_plans_imports_no_torch_by_any_way() -> None:
    """One process for all of them: the package's own file and everything that they import is included."""
    imports = "; ".join(f"import expertp.{name}" for name in WITHOUT_TORCH)
    program = f"{imports}; import sys; print([name for name in ('torch', 'numpy', 'scipy') if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


def test_the_public_names_are_there_and_are_not_modules() -> None:
    import types

    import expertp

    for name in expertp.__all__:
        assert not isinstance(getattr(expertp, name), types.ModuleType), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = expertp.nothing


def test_every_module_with_shapes_is_checked_at_run_time() -> None:
    places = [path.relative_to(SOURCE.parent) for path in FILES if "jaxtyping" in imported_modules(path)]
    names = [".".join(place.with_suffix("").parts) for place in places]
    assert names
    assert not [name for name in names if not f"{name}.".startswith(tuple(f"{each}." for each in WITH_SHAPES))]
