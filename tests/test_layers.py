"""Which part may use which: each those above it in STOREYS, and none of its own storey."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STOREYS = (
    ("errors", "processor"),
    ("callformats",),
    ("client", "outgoing", "tensors"),
    ("bodies", "idempotency", "jobs", "settings", "structured", "waits"),
    ("dispatch", "fitting", "wire"),
    ("cluster", "models", "objects"),
    ("worker",),
    ("engine", "hub", "images", "manager", "transfer", "upstreams"),
    ("encoder", "http"),
    ("groups", "vision"),
    ("docs", "doctor", "generation", "management"),
    ("chat",),
    ("anthropic", "kserve", "openai", "predictions"),
    ("forwarding", "llamacpp"),  # both answer in the shapes of those before
    ("delegation",),
    ("serving",),
    ("app",),
    ("bench", "gunicorn_app"),
    ("cli",),
    ("__main__",),
)
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


def test_every_part_has_its_storey():
    assert sorted(PARTS) == sorted({part_of(name) for name in MODULES if name != "corosrv"})


@pytest.mark.parametrize("part", PARTS)
def test_a_part_uses_only_those_below_it(part: str):
    height = next(height for height, storey in enumerate(STOREYS) if part in storey)

    assert uses(part) <= {below for storey in STOREYS[:height] for below in storey}


def test_no_module_needs_itself_to_be_loaded():
    needs = {name: imported(at_load(ast.parse(path.read_text()))) & set(MODULES) for name, path in MODULES.items()}

    TopologicalSorter(needs).prepare()  # raises CycleError


def test_only_the_binding_knows_the_extension():
    knows = [name for name, path in MODULES.items() if "corosrv._native" in path.read_text()]

    assert knows == ["corosrv.engine.binding.library"]
