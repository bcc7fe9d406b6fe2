"""The documents as a site: it builds without a warning, links lead somewhere, and pages are made from the code."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from corosrv.contracts.settings import PARTS
from tests.test_documents import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=110, check=False)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def read(site: Path, page: str) -> str:
    return html.unescape((site / page / "index.html").read_text())


def test_every_document_is_a_page(site: Path) -> None:
    documents = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]

    assert [name for name in map(str, documents) if name != "index" and not (site / name / "index.html").exists()] == []


def test_every_setting_is_on_a_page_of_its_own(site: Path) -> None:
    page = read(site, "all-settings")

    assert [
        name for part in PARTS for name in (f.name for f in fields(part)) if f"COROSRV_{name.upper()}" not in page
    ] == []


def test_every_route_of_models_is_on_a_page(site: Path) -> None:
    page = read(site, "http")

    for route in (
        "POST /v1/chat/completions",
        "POST /v1/messages",
        "POST /api/chat",
        "GET /v1/live",
        "POST /completion",
    ):
        assert f"<code>{route}</code>" in page


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*rel=["']?stylesheet[^>]*//"""
    )

    assert [str(page) for page in site.rglob("*.html") if loaded.search(page.read_text())] == []


def test_links_to_files_that_are_no_pages_are_shown_as_their_names(site: Path) -> None:
    page = read(site, "guide/applications")

    assert "<code>deploy/app/typed.py</code>" in page
    assert "../deploy" not in page
