"""Tests marked `own_process` run in a process of their own, and are reported as any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TIMEOUT = 60.0  # seconds

CONFTEST = """
from tests.support import own_process

def pytest_configure(config):
    config.addinivalue_line("markers", "own_process")
    config.pluginmanager.register(own_process.plugin(config))
"""

PREAMBLE = "import os, pytest\nmarked = pytest.mark.own_process\n"


@pytest.fixture
def outcome(tmp_path: Path):
    """Runs tests, given as text, in two folders, and returns what pytest prints."""

    def run(tests: str) -> str:
        (tmp_path / "conftest.py").write_text(CONFTEST)
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / f"test_{folder}.py").write_text(PREAMBLE + tests)
        options = ["-p", "no:cacheprovider", "-rA", f"--rootdir={tmp_path}", str(tmp_path)]
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        ).stdout

    return run


def test_marked_tests_of_a_file_share_a_process_that_the_others_do_not_run_in(outcome):
    seen = outcome("""
def test_a(): open(f"{__file__}.a", "w").write(str(os.getpid()))
@marked
def test_b(): open(f"{__file__}.b", "w").write(str(os.getpid()))
@marked
def test_c(): assert open(f"{__file__}.a").read() != open(f"{__file__}.b").read() == str(os.getpid())
def test_d(): assert open(f"{__file__}.a").read() == str(os.getpid())
""")

    assert "8 passed" in seen


def test_each_outcome_is_reported(outcome):
    seen = outcome("""
@pytest.fixture
def broken(): yield; raise OSError("left behind")
@marked
def test_fails(): assert 1 == 2
@marked
def test_is_skipped(): pytest.skip("no need")
@marked
def test_leaves_something(broken): pass
@marked
def test_passes(): pass
""")

    assert "assert 1 == 2" in seen
    assert "no need" in seen
    assert "left behind" in seen
    assert "2 failed, 4 passed, 2 skipped, 2 errors" in seen


def test_a_test_that_ends_its_process_fails_with_its_words_and_the_next_one_runs(outcome):
    seen = outcome("""
@marked
def test_ends(capfd):
    with capfd.disabled(): os.write(2, b"last words")
    os._exit(3)
@marked
def test_next(): pass
""")

    assert "the process of this test ended with 3" in seen
    assert "last words" in seen
    assert "2 failed, 2 passed" in seen
