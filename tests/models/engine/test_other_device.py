"""A model of which a device beside the processor has a part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from corosrv.models.engine import libllama
from tests.native.test_native import HERE, build_beside_ggml
from tests.support.engines import packaged_model

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

LAYERS = 31  # of SmolLM2, with the output


def run(*settings: dict[str, Any]) -> list[dict[str, Any]]:
    packaged_model()
    build_beside_ggml("other-device")
    places = {"LD_LIBRARY_PATH": f"{libllama.folder()}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    program = [sys.executable, "-m", "tests.support.other_device", str(HERE / "build" / "other_device.so")]
    done = subprocess.run(
        [*program, json.dumps(settings)], env=os.environ | places, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_device_with_the_output_layer_picks_the_largest_logits_and_answers_are_the_same() -> None:
    picked, all_logits = run({"gpu_layers": "all"}, {"gpu_layers": "all", "candidates": "processor"})

    assert picked["texts"] == all_logits["texts"]
    assert (picked["kernels"], all_logits["kernels"]) == (
        "libllama's kernels alone, candidates from the device",
        "libllama's kernels alone",
    )
    assert picked["elsewhere"] > all_logits["elsewhere"] > 0


def test_own_kernels_compute_where_the_processor_has_most_of_the_weights() -> None:
    none, few, many = run(*({"gpu_layers": str(n)} for n in (0, 2, LAYERS - 5)))

    assert "candidates" not in none["kernels"]
    assert few["kernels"].split(" (")[0] == none["kernels"].split(" (")[0]  # corosrv's, where the processor can
    assert few["kernels"].endswith("candidates from the device")
    assert many["kernels"] == "libllama's kernels alone, candidates from the device"
    assert many["elsewhere"] > few["elsewhere"] > none["elsewhere"] == 0
