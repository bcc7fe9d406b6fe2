"""Tests that what the documents name is there, and that what they promise to explain is explained."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.test_house import importers
from tests.test_layers import BESIDE, STOREYS, part_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    "README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("**/*.md"))
]  # fmt: skip
PLACE = re.compile(r"`((?:corosrv|native|tests|docs|deploy|benchmarks)/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
ROW = re.compile(r"^\| \*\*(I\d+)\*\* .*`([\w./-]+)`: \"([^\"]+)\" \|$", re.MULTILINE)

PROOF = re.compile(r"`(tests/[\w./-]+)`: \"([^\"]+)\"")


def read(document: str) -> str:
    return (ROOT / document).read_text()


def headings(page: Path) -> set[str]:
    """Returns the names by which links reach the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document: str):
    missing = sorted({place for place in PLACE.findall(read(document)) if not (ROOT / place).exists()})

    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file_and_a_heading(document: str):
    page = ROOT / document
    broken = [
        (target, heading)
        for target, heading in LINK.findall(page.read_text())
        if not (place := (page.parent / target if target else page)).exists()
        or (heading and heading not in headings(place))
    ]

    assert broken == []


def test_the_readme_links_every_page_of_the_guide():
    pages = {f"docs/guide/{path.name}" for path in (ROOT / "docs" / "guide").glob("*.md")}

    assert pages - {target for target, _ in LINK.findall(read("README.md"))} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_behind_a_figure_is_there(document: str):
    modules = re.findall(r"`python -m ((?:tests|benchmarks)[\w.]+)", read(document))

    places = [ROOT / module.replace(".", "/") for module in modules]
    assert [
        str(place) for place in places if not (place.with_suffix(".py").exists() or (place / "__main__.py").exists())
    ] == []


@pytest.mark.parametrize(("invariant", "file", "title"), ROW.findall(read("docs/architecture.md")))
def test_every_invariant_names_a_test_that_is_there(invariant: str, file: str, title: str):
    assert title in (ROOT / file).read_text()
    assert re.search(rf"\b{invariant}\b", title, re.IGNORECASE) or title.endswith(invariant.lower())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_a_table_of_invariants_names_is_there(document: str):
    named = PROOF.findall(read(document))

    assert [(file, title) for file, title in named if title not in (ROOT / file).read_text()] == []


def test_the_wings_name_the_tests_of_their_invariants():
    assert sum(len(PROOF.findall(read(document))) for document in DOCUMENTS if "wings/" in document) >= 50


def test_all_ten_invariants_are_listed():
    assert [row[0] for row in ROW.findall(read("docs/architecture.md"))] == [f"I{number}" for number in range(1, 11)]


def test_every_wing_has_its_line_in_the_table_of_wings():
    packages = {f"corosrv/{path.parent.name}" for path in (ROOT / "corosrv").glob("*/__init__.py")}

    assert {package for package in packages if f"`{package}`" not in read("docs/architecture.md")} == set()


WINGS = sorted(path.parent.name for path in (ROOT / "corosrv").glob("*/__init__.py"))


def wing_page(wing: str) -> str:
    return read(f"docs/wings/{wing}.md")


def allowed_wings(page: str) -> set[str]:
    """Returns the wings that a page says its wing may import."""
    (words,) = re.findall(r"\bIt\s+may\s+import\s+([^.;]*)[.;]", page)
    names = {wing for wing in WINGS if re.search(rf"\b{wing}\b", words)}
    return names if not words.startswith("all") else set(WINGS) - names - {"client"}


def test_every_wing_and_the_native_core_have_a_page_that_the_architecture_links():
    pages = {path.stem for path in (ROOT / "docs" / "wings").glob("*.md")}
    linked = {Path(target).stem for target, _ in LINK.findall(read("docs/architecture.md")) if "wings/" in target}

    assert pages == linked == {*WINGS, "native"}


@pytest.mark.parametrize("wing", WINGS)
def test_the_page_of_a_wing_says_what_it_may_import(wing: str):
    heights = {part: height for height, storey in enumerate(STOREYS) for part in storey}
    below = BESIDE.get(wing) or {part for part in WINGS if part in heights and heights[part] < heights.get(wing, 0)}

    assert allowed_wings(wing_page(wing)) - {wing} == below


@pytest.fixture(scope="module")
def doors() -> dict[str, set[str]]:
    """Returns by wing its packages and own modules that something outside of it imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, users in importers().items():
        wing = part_of(module)
        if module.startswith("corosrv.") and module.count(".") > 1 and any(part_of(user) != wing for user in users):
            found[wing].add("/".join(module.split(".")[:3]))
    return found


@pytest.mark.parametrize("wing", WINGS)
def test_the_page_of_a_wing_names_what_others_enter_it_by(wing: str, doors: dict[str, set[str]]):
    page = wing_page(wing)

    assert {door for door in doors[wing] if f"`{door}" not in page} == set()


def test_the_glossary_has_its_words_in_order():
    glossary = read("CONTRIBUTING.md").split("## Glossary", 1)[1]
    words = re.findall(r"^\| ([^|]+?) \| ", glossary, re.MULTILINE)[2:]

    assert len(words) >= 40
    assert words == sorted(words, key=lambda word: word.lower().replace("-", " "))
