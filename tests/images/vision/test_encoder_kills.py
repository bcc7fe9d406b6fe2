"""Many images through a small pool while the encoder is killed again and again."""

import os
import random
import signal
from contextlib import suppress

import gevent
import pytest

from corosrv.base.errors import Refused
from corosrv.images.vision import supervisor
from corosrv.images.vision.encoder import ImageEncoder
from corosrv.workers.dispatch.estimates import Backoff
from tests.images.vision.encoders import N_EMBD, encode, image, measure, options
from tests.support import gguf, projector
from tests.support.descriptors import n_descriptors
from tests.support.waiting import wait_until

N_IMAGES, N_KILLS = 200, 4


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    """An encoder of a pool of 8 blocks, which may die often and comes back soon."""
    monkeypatch.setattr(supervisor, "MOST_RESTARTS", 1000)
    monkeypatch.setattr(Backoff, "fail", lambda backoff, now: 0.01)
    model, mmproj = gguf.write_llama(tmp_path / "tiny.gguf"), projector.write_mlp(tmp_path / "mmproj.gguf", N_EMBD)
    limits = {"max_queued": N_IMAGES, "max_blocks_per_round": 1}
    encoder = ImageEncoder(options(model, mmproj, n_blocks=8, limits=limits, cache_bytes=0), N_EMBD)
    encoder.start()
    yield encoder
    encoder.close()


@pytest.mark.own_process
def test_all_are_answered_and_nothing_is_left_when_the_encoder_is_killed_at_random(encoder):
    n_before = n_descriptors()
    chance = random.Random(13)
    waiting = [gevent.spawn(encode, encoder, image(seed)) for seed in range(N_IMAGES)]

    for _ in range(N_KILLS):
        n_done, n_restarts = sum(request.ready() for request in waiting), encoder.stats().n_restarts
        wanted = n_done + chance.randrange(1, N_IMAGES // N_KILLS)
        wait_until(lambda wanted=wanted: sum(request.ready() for request in waiting) >= min(wanted, N_IMAGES - 1))
        with suppress(ProcessLookupError):
            os.kill(encoder.pid, signal.SIGKILL)
        wait_until(lambda n=n_restarts: encoder.stats().n_restarts > n)
    gevent.joinall(waiting, timeout=60)

    failures = [request.exception for request in waiting if not request.successful()]
    assert all(isinstance(failure, Refused) for failure in failures)  # those that were at hand twice
    assert len(failures) <= N_KILLS // 2
    stats = encoder.stats().transfers
    assert (stats.n_free, stats.n_in_use, stats.n_quarantined) == (8, 0, 0)
    assert (stats.n_active, stats.n_queued, stats.staging_bytes) == (0, 0, 0)
    wait_until(lambda: n_descriptors() <= n_before, "as many descriptors as before")


@pytest.mark.own_process
def test_a_thousand_requests_wait_without_a_thread_or_descriptor_each(encoder):
    measure(encoder, image())
    n_before = n_descriptors()
    os.kill(encoder.pid, signal.SIGSTOP)
    waiting = [gevent.spawn(encode, encoder, image(number % 50)) for number in range(1000)]
    wait_until(lambda: encoder.stats().transfers.n_queued > 0)
    n_while_waiting = n_descriptors()

    os.kill(encoder.pid, signal.SIGCONT)
    gevent.joinall(waiting, timeout=60, raise_error=True)

    assert n_while_waiting <= n_before + 2
    assert encoder.stats().transfers.n_rows == 50 * projector.N_PATCHES
