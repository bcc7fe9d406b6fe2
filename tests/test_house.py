"""Limits of the house: folders, files, small files, doors of a package. Numbers here only fall."""

import ast
from collections import defaultdict
from pathlib import Path

from tests.test_layers import MODULES, ROOT, imported
from tests.test_words import SHARED_CLASSES

MOST_FILES = 500
MOST_FILES_IN_A_FOLDER = 20
SMALL = 60  # lines: a file below it has two importers, or is one of these
SMALL_FILES: set[str] = set()
MOST_DOORS = 5  # modules of a package that others import, but for these packages
DOORS = {
    "corosrv.contracts.jobs": 7,
    "corosrv.contracts.settings": 6,
    "corosrv.dialects.generation": 8,
    "corosrv.dialects.kserve": 7,
    "corosrv.dialects.openai": 6,
    "corosrv.fleet.cluster": 8,
    "corosrv.fleet.upstreams": 8,
    "corosrv.gateway.forwarding": 6,  # in place of as many of the delegation beside it
    "corosrv.models.engine": 6,
    "corosrv.web": 8,  # three of which were packages of their own
    "corosrv.web.http": 17,
    "corosrv.workers.dispatch": 11,
    "corosrv.workers.manager": 6,
    "corosrv.workers.wire": 10,
    "corosrv.workers.worker.app": 6,
    "corosrv.workers.worker.parent": 8,
}

TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def importers() -> dict[str, set[str]]:
    """Returns for each module those that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in TREES.items():
        for module in imported(ast.walk(tree)):
            found[module].add(name)
    return found


def n_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_the_package_has_few_files():
    assert len(MODULES) <= MOST_FILES


def test_no_folder_has_many_files():
    folders = {path.parent for path in MODULES.values()}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}

    assert {folder: n for folder, n in counts.items() if n > MOST_FILES_IN_A_FOLDER} == {}


def test_a_small_file_has_two_importers():
    used = importers()
    small = {
        name
        for name, path in MODULES.items()
        if n_lines(path) < SMALL and len(used[name]) < 2 and path.name not in ("__init__.py", "__main__.py")
    }

    assert small - {"corosrv.__main__"} == SMALL_FILES


def test_few_modules_of_a_package_are_imported_from_outside():
    doors: dict[str, set[str]] = defaultdict(set)
    for module, users in importers().items():
        package = module.rpartition(".")[0]
        if module in MODULES and package != "corosrv" and MODULES[module].name != "__init__.py":
            doors[package] |= {module for user in users if user != package and not user.startswith(f"{package}.")}
    wide = {package: len(modules) for package, modules in doors.items() if len(modules) > MOST_DOORS}

    assert wide == DOORS


def test_no_class_name_is_used_twice():
    """Underscores and capitals make no difference."""
    homes: dict[str, set[str]] = defaultdict(set)
    names: dict[str, set[str]] = defaultdict(set)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                key = node.name.replace("_", "").lower()
                homes[key].add(f"{module}.{node.name}")
                names[key].add(node.name)

    twice = {key: sorted(homes[key]) for key in homes if len(homes[key]) > 1 and not names[key] <= SHARED_CLASSES}
    assert twice == {}
