"""Which part may use which: each those above it in STOREYS, and none of its own storey."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STOREYS = (
    ("base",),
    ("formats",),
    ("contracts",),
    ("workers",),
    ("models",),
    ("fleet",),
    ("images",),
    ("web",),
    ("dialects",),
    ("gateway",),
    ("serving",),
    ("app",),
    ("gunicorn_app",),
    ("doctor",),
    ("cli_help",),
    ("cli_llama_server",),
    ("cli_options",),
    ("cli_models",),
    ("cli",),
    ("__main__",),
)
BESIDE = {"client": {"base"}, "worker": {"base", "formats", "contracts", "workers"}}  # programs and names of their own
MOST_FOLDERS = 12
PARTS = [part for storey in STOREYS for part in storey]


def modules() -> dict[str, Path]:
    """All that the package is made of, by their names; the package itself, which has the version, is `corosrv`."""
    paths = sorted((ROOT / "corosrv").rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


MODULES = modules()


def imported(statements: Iterator[ast.AST]) -> set[str]:
    """The modules that these statements import, those of the package by their whole names."""
    found = set()
    for statement in statements:
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module:
            inner = {f"{statement.module}.{alias.name}" for alias in statement.names}
            found |= {name if name in MODULES else statement.module for name in inner}
    return found


def at_load(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: all of it but the insides of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
            yield from at_load(child)


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def uses(part: str) -> set[str]:
    """The parts that some module of this one imports, be it late."""
    paths = [path for name, path in MODULES.items() if part_of(name) == part]
    found = set().union(*(imported(ast.walk(ast.parse(path.read_text()))) for path in paths))
    return {part_of(name) for name in found if name.startswith("corosrv.") and name != "corosrv._native"} - {part}


def room_of(module: str) -> str:
    """Returns the wing's package that a module is in; for a module of the wing itself, the module."""
    return ".".join(module.split(".")[:3])


def test_every_part_has_its_storey():
    assert sorted([*PARTS, *BESIDE]) == sorted({part_of(name) for name in MODULES if name != "corosrv"})


@pytest.mark.parametrize("part", PARTS)
def test_a_part_uses_only_those_below_it(part: str):
    height = next(height for height, storey in enumerate(STOREYS) if part in storey)
    programs = {"client"} if part in ("cli", "cli_models") else set()  # `corosrv top`, `corosrv batch`

    assert uses(part) - programs <= {below for storey in STOREYS[:height] for below in storey}


@pytest.mark.parametrize(("part", "below"), BESIDE.items())
def test_what_stands_beside_the_server_uses_little_of_it(part: str, below: set[str]):
    assert uses(part) <= below


def test_there_are_few_wings():
    folders = {path.name for path in (ROOT / "corosrv").iterdir() if path.is_dir()} - {"__pycache__"}

    assert len(folders) <= MOST_FOLDERS


@pytest.mark.parametrize("wing", [wing for wing in PARTS if (ROOT / "corosrv" / wing).is_dir()])
def test_no_two_packages_of_a_wing_use_each_other(wing: str):
    needs: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if part_of(name) == wing:
            found = {room_of(module) for module in imported(ast.walk(ast.parse(path.read_text())))}
            needs.setdefault(room_of(name), set()).update(
                room for room in found if part_of(room) == wing and room != room_of(name)
            )

    TopologicalSorter(needs).prepare()  # raises CycleError


def test_no_module_needs_itself_to_be_loaded():
    needs = {name: imported(at_load(ast.parse(path.read_text()))) & set(MODULES) for name, path in MODULES.items()}

    TopologicalSorter(needs).prepare()  # raises CycleError


def test_only_the_binding_knows_the_extension():
    knows = [name for name, path in MODULES.items() if "corosrv._native" in path.read_text()]

    assert knows == ["corosrv.models.engine.binding.library"]
