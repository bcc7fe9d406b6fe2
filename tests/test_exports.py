"""What packages export: `__all__` names what is there, all of it, and no more."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in (ROOT / "corosrv").rglob("__init__.py")
    if "__all__" in path.read_text()
)


def imports(package: str) -> set[str]:
    """The names that a package's own module takes from its modules, but for those that its own code uses."""
    tree = ast.parse((ROOT / Path(*package.split(".")) / "__init__.py").read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return {
        alias.asname or alias.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("corosrv")
        for alias in statement.names
        if alias.name != "*"
    } - used


@pytest.mark.parametrize("package", PACKAGES)
def test_each_exported_name_exists(package: str):
    module = importlib.import_module(package)

    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_takes_from_its_modules_is_exported(package: str):
    module = importlib.import_module(package)

    assert imports(package) <= set(module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_exported_twice(package: str):
    names = importlib.import_module(package).__all__

    assert len(names) == len(set(names))


def test_a_package_that_gathers_names_says_which_it_exports():
    silent = [
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "corosrv").rglob("__init__.py")
        if "__all__" not in path.read_text() and imports(".".join(path.parent.relative_to(ROOT).parts))
    ]

    assert silent == []
