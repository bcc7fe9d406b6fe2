"""Slots take memory when something is computed in them, not before, and give it back when they stand idle."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from corosrv.models.engine.libllama import cpu_identity
from tests.support.engines import packaged_model

MEGABYTE = 1 << 20
FILLED = 16 * 2048 * 23_040  # bytes of the KV cache if all of it were there: 755 MB
TOUCHED = 4 * 270 * 10_000  # bytes that the prompts fill at least, with keys and values of 8 bits

WITH_OWN_KERNELS = pytest.mark.skipif(
    "avx2" not in cpu_identity(), reason="without AVX2 the default computes with libllama's kernels, too"
)

# A process of its own, whose memory nothing else takes; nothing of the prompts is kept as a prefix.
PROGRAM = """
import sys, time
import msgspec
from corosrv.models.engine import Engine, engine
from corosrv.contracts.jobs import Job, Sampling, Text
from corosrv.contracts.settings import ModelSettings

IDLE_S = 3.0
make_options = engine.native_options
engine.native_options = lambda *args: msgspec.structs.replace(make_options(*args), idle_s=IDLE_S)

def kilobytes(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0])

def resident():
    return 1024 * kilobytes("RssAnon")

def texts():
    prompts = tuple(Text(f"{name} " * 270) for name in ("river", "stone", "cloud", "tree"))
    said = ["", "", "", ""]
    with served.submit(Job(prompts, max_tokens=12, sampling=Sampling(temperature=0))) as reader:
        while taken := reader.take(300):
            for chunk in taken:
                said[chunk.index] += chunk.text
    return said

chosen = msgspec.json.decode(sys.argv[1])
served = Engine(ModelSettings(slots=16, ctx=2048, threads=1, cache_bytes=0, **chosen))
served.open()
peak = 1024 * kilobytes("VmHWM")
first, used = texts(), resident()
deadline = time.monotonic() + 60
while resident() > used - int(sys.argv[2]) and time.monotonic() < deadline:
    time.sleep(0.05)
at_rest = resident()
second = texts()
served.close()
print(msgspec.json.encode({"peak": peak, "used": used, "at_rest": at_rest, "first": first, "second": second}).decode())
"""


class Seen(msgspec.Struct):
    peak: int
    used: int
    at_rest: int
    first: list[str]
    second: list[str]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param({}, id="default"),
        pytest.param({"kernels": "ggml"}, id="ggml", marks=WITH_OWN_KERNELS),
        pytest.param({"kv_unified": True}, id="unified"),
        pytest.param({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, id="q8_0"),
    ],
)
def test_slots_take_what_they_fill_and_give_it_back_when_idle(chosen: dict[str, object]) -> None:
    options = msgspec.json.encode({"model": packaged_model(), **chosen}).decode()
    command = [sys.executable, "-c", PROGRAM, options, str(TOUCHED)]

    printed = subprocess.run(command, capture_output=True, check=False, timeout=600)

    assert printed.returncode == 0, printed.stderr.decode()
    seen = msgspec.json.decode(printed.stdout, type=Seen)
    assert seen.peak < FILLED - 200 * MEGABYTE
    assert seen.used < FILLED - 200 * MEGABYTE
    assert seen.at_rest <= seen.used - TOUCHED
    assert all(seen.first)
    # Where slots share their cells, a text depends on where they lie; see docs/guide/limits.md.
    assert seen.second == seen.first or "kv_unified" in chosen
