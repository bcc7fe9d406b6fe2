"""The tests of fetching once more, in a process whose sockets wait through gevent, as those of a server do."""

import os
import subprocess
import sys

from tests.images import test_fetching

# Without plugins and what they load, which takes longer than the tests.
PROGRAM = """
from gevent import monkey
monkey.patch_all()
import os, sys, pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "--rootdir=.", sys.argv[1]]))
"""


def test_fetching_is_as_safe_in_a_patched_process():
    environ = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, test_fetching.__file__],
        env=environ, capture_output=True, text=True, timeout=120,
    )  # fmt: skip

    assert run.returncode == 0, run.stdout[-5000:]
