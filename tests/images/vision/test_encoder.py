"""Images encoded by a real encoder process, which dies, hangs and is replaced."""

import os
import signal
import time

import gevent
import pytest

from corosrv.base.errors import (
    ClientGone,
    DeadlinePassed,
    EncoderBusy,
    EncoderUnavailable,
    EncodeTimedOut,
    LoadError,
    Refused,
    ShuttingDown,
)
from corosrv.contracts.jobs import Rows, Terms
from corosrv.contracts.settings import ModelSettings
from corosrv.images.vision import encoder as module
from corosrv.images.vision.encoder import ImageEncoder, encode_images
from corosrv.images.vision.engine import encoder_options
from tests.images.vision.encoders import N_EMBD, WAIT, NobodyLeaves, encode, image, measure, options
from tests.support import faulty_images, gguf, projector
from tests.support.faulty_images import BUSY, FATAL, SLOW
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gguf.write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory):
    return projector.write_mlp(tmp_path_factory.mktemp("projector") / "mlp.gguf", N_EMBD)


@pytest.fixture
def make(model, mmproj):
    encoders = []

    def make(file=None, **changes):
        encoders.append(ImageEncoder(options(model, file or mmproj, **changes), N_EMBD))
        return encoders[-1]

    yield make
    for encoder in encoders:
        encoder.close()


@pytest.fixture
def encoder(make):
    encoder = make()
    encoder.start()
    return encoder


@pytest.fixture
def gate(tmp_path):
    """The file that images of SLOW pixels' width wait for."""
    return tmp_path / "gate"


@pytest.fixture
def faulty_of(make, gate, monkeypatch):
    """Starts an encoder that has faults; see tests.support.faulty_images."""
    for name, value in faulty_images.environ(gate).items():
        monkeypatch.setenv(name, value)

    def start(**changes):
        encoder = make(**changes)
        encoder.start()
        return encoder

    return start


@pytest.fixture
def faulty(faulty_of):
    return faulty_of()


def is_idle(encoder) -> bool:
    stats = encoder.stats().transfers
    return not (stats.n_in_use or stats.n_quarantined or stats.n_active or stats.n_queued or stats.staging_bytes)


def stop_process(encoder) -> None:
    measure(encoder, image())  # or each image would first wait for its size
    os.kill(encoder.pid, signal.SIGSTOP)


def kill_process(encoder) -> None:
    os.kill(encoder.pid, signal.SIGKILL)


def test_an_image_becomes_rows(encoder):
    picture = image()

    (encoded,) = encode(encoder, picture).values()

    (rows,) = (piece for piece in encoded.pieces if isinstance(piece, Rows))
    assert (rows.n, rows.width) == (projector.N_PATCHES, N_EMBD)
    assert is_idle(encoder)


def test_the_tokens_of_an_image_are_known_before_it_is_encoded(encoder):
    assert measure(encoder, image()) == projector.N_PATCHES
    assert encoder.stats().transfers.n_rounds == 0


def test_the_size_of_an_image_is_asked_for_once(encoder):
    measure(encoder, image(1))
    stop_process(encoder)

    assert measure(encoder, image(2)) == projector.N_PATCHES


def test_an_encoder_that_is_still_at_a_size_is_replaced_and_the_image_encoded(make):
    encoder = make(encode_limit=4.0)
    encoder.start()
    os.kill(encoder.pid, signal.SIGSTOP)

    assert encode(encoder, image())
    assert encoder.stats().n_restarts == 1


def test_an_encoder_that_dies_at_a_size_holds_nobody_up(make):
    encoder = make()
    encoder.start()
    os.kill(encoder.pid, signal.SIGSTOP)
    encoding = gevent.spawn(encode, encoder, image())
    gevent.idle()

    kill_process(encoder)

    assert encoding.get(timeout=WAIT)


def test_the_same_image_is_encoded_once(encoder):
    first = encode(encoder, image(1), image(1), image(2))

    second = encode(encoder, image(2), image(1))

    assert second == first
    assert len(first) == 2
    assert encoder.stats().transfers.n_rounds == 2
    assert encoder.stats().n_cache_hits == 2


def test_an_image_of_another_caller_is_encoded_anew(encoder):
    encode(encoder, image(), caller="one")

    encode(encoder, image(), caller="another")

    assert encoder.stats().n_cache_hits == 0
    assert encoder.stats().transfers.n_rounds == 2


def test_requests_with_one_image_share_its_encode_and_its_leaving_hurts_nobody(encoder):
    stop_process(encoder)
    waiting = [gevent.spawn(encode, encoder, image()) for _ in range(3)]
    wait_until(lambda: encoder.stats().transfers.n_active == 1)

    waiting[0].kill()
    os.kill(encoder.pid, signal.SIGCONT)
    gevent.joinall(waiting[1:], timeout=30, raise_error=True)

    assert waiting[1].value == waiting[2].value
    assert encoder.stats().transfers.n_rounds == 1


def test_an_image_that_nobody_waits_for_frees_everything(encoder):
    stop_process(encoder)
    waiting = gevent.spawn(encode, encoder, image())
    wait_until(lambda: encoder.stats().transfers.n_active == 1)

    waiting.kill()
    os.kill(encoder.pid, signal.SIGCONT)

    wait_until(lambda: is_idle(encoder))
    assert encode(encoder, image(2))


def test_a_request_whose_client_has_left_ends(encoder):
    stop_process(encoder)
    watches = []

    class Leaves(NobodyLeaves):
        def __init__(self, on_gone):
            self.on_gone = on_gone
            watches.append(self)

    waiting = gevent.spawn(encode_images, encoder, [image()], Terms(), Leaves)
    wait_until(lambda: watches)
    watches[0].is_gone = True
    watches[0].on_gone()

    with pytest.raises(ClientGone):
        waiting.get(timeout=30)
    assert is_idle(encoder)


def test_a_request_ends_at_its_deadline(encoder):
    stop_process(encoder)

    with pytest.raises(DeadlinePassed):
        encode_images(encoder, [image()], Terms(deadline=0.0), NobodyLeaves)

    assert is_idle(encoder)


def test_more_images_than_may_wait_are_refused_with_words(make):
    encoder = make(limits={"max_queued": 1, "max_active": 1})
    encoder.start()
    stop_process(encoder)
    waiting = [gevent.spawn(encode, encoder, image(1))]
    wait_until(lambda: encoder.stats().transfers.n_active == 1)
    waiting.append(gevent.spawn(encode, encoder, image(2)))
    wait_until(lambda: encoder.stats().transfers.n_queued == 1)

    with pytest.raises(EncoderBusy, match="1 images wait"):
        encode(encoder, image(3))

    gevent.killall(waiting)


def test_a_killed_encoder_is_replaced_and_its_images_are_encoded_by_the_next(encoder):
    stop_process(encoder)
    waiting = [gevent.spawn(encode, encoder, image(seed)) for seed in range(6)]
    wait_until(lambda: encoder.stats().transfers.n_queued == 2)

    kill_process(encoder)
    gevent.joinall(waiting, timeout=60, raise_error=True)

    assert all(encoding.value for encoding in waiting)
    assert encoder.stats().n_restarts == 1
    assert is_idle(encoder)


def test_an_image_that_the_encoder_dies_of_twice_is_refused(faulty):
    with pytest.raises(Refused, match="ended twice") as refusal:
        encode(faulty, image(width=FATAL))

    assert refusal.value.status == 400
    assert faulty.stats().n_restarts == 1
    with pytest.raises(Refused, match="ended twice"):
        encode(faulty, image(width=FATAL))
    assert faulty.stats().transfers.n_queued == 0


def test_images_beside_one_that_kills_the_encoder_are_encoded(faulty):
    waiting = [gevent.spawn(encode, faulty, image(width=width)) for width in (FATAL, 56, 60)]

    gevent.joinall(waiting, timeout=60)

    assert isinstance(waiting[0].exception, Refused)
    assert waiting[1].value
    assert waiting[2].value
    assert is_idle(faulty)


def test_an_encode_that_does_not_end_is_killed_and_tried_once_more(make):
    encoder = make(encode_limit=0.5)
    encoder.start()
    stop_process(encoder)

    assert encode(encoder, image())

    assert encoder.stats().n_kills >= 1
    assert encoder.stats().n_restarts >= 1


def test_an_encode_that_stands_still_again_is_given_up_and_the_image_is_no_suspect(faulty_of, gate):
    encoder = faulty_of(encode_limit=2.0)  # it stands still after a second, also on a busy machine

    for _ in range(3):
        with pytest.raises(EncodeTimedOut, match="COROSRV_ENCODE_TIMEOUT_S") as caught:
            encode(encoder, image(width=SLOW))

    assert (caught.value.status, caught.value.code) == (504, "image_timeout")
    assert encoder.stats().n_kills == 6
    assert not encoder.is_degraded
    gate.touch()
    assert encode(encoder, image(width=SLOW))


def test_an_encode_that_goes_on_for_too_long_is_given_up_and_images_beside_it_are_encoded(faulty_of):
    encoder = faulty_of(encode_limit=1.0)
    waiting = [gevent.spawn(encode, encoder, image(width=width)) for width in (BUSY, 56, 60)]

    gevent.joinall(waiting, timeout=60)

    assert isinstance(waiting[0].exception, EncodeTimedOut)
    assert "longer than 1 s" in str(waiting[0].exception)
    assert waiting[1].value
    assert waiting[2].value
    assert encoder.stats().n_kills == 1


def test_an_encoder_that_dies_again_and_again_is_not_waited_for(encoder):
    for n_restarts in range(3):
        kill_process(encoder)
        wait_until(lambda n=n_restarts: encoder.stats().n_restarts == n + 1)

    with pytest.raises(EncoderUnavailable, match="too often"):
        encode(encoder, image())

    assert encoder.is_degraded
    assert not encoder.stats().transfers.finished  # the image was refused before a transfer began


def test_images_that_wait_while_the_encoder_dies_too_often_are_refused(encoder):
    for n_restarts in range(2):
        kill_process(encoder)
        wait_until(lambda n=n_restarts: encoder.stats().n_restarts == n + 1)
    waiting = gevent.spawn(encode, encoder, image())  # of which the next encoder hears
    wait_until(lambda: encoder.stats().transfers.n_queued == 1)

    kill_process(encoder)

    with pytest.raises(EncoderUnavailable, match="too often"):
        waiting.get(timeout=30)
    assert is_idle(encoder)


@pytest.mark.parametrize(
    ("limits", "size", "words"),
    [
        ({}, (40_000, 1), "40000 x 1"),
        ({"staging_budget": 100}, (56, 56), "16 rows, more than the memory for rows holds"),
    ],
    ids=["libmtmd takes no such image", "more rows than there is memory"],
)
def test_an_image_that_becomes_no_rows_is_refused_and_others_are_not_kept_from_theirs(make, limits, size, words):
    encoder = make(limits=limits)
    encoder.start()

    with pytest.raises(Refused, match=f"the image has no rows: .*{words}") as refusal:
        encode(encoder, image(1, *size))

    assert (refusal.value.status, refusal.value.code) == (400, "image_not_encoded")
    assert is_idle(encoder)
    assert encoder.stats().n_restarts == 0


def test_an_image_that_the_encoder_does_not_describe_in_time_is_told_to_come_again(make):
    encoder = make(limits={"open_timeout": 0.3})
    encoder.start()
    stop_process(encoder)

    with pytest.raises(EncoderUnavailable, match="the image could not be encoded: "):
        encode(encoder, image())

    os.kill(encoder.pid, signal.SIGCONT)
    wait_until(lambda: is_idle(encoder))
    assert encode(encoder, image())


def test_rows_that_cannot_be_read_cost_their_own_request_alone(encoder, monkeypatch):
    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(module, "read_pieces", fail)
        with pytest.raises(EncoderUnavailable, match="the server's log says why"):
            encode(encoder, image())

    assert is_idle(encoder)
    assert encode(encoder, image())


def test_a_request_has_four_images_encoded_at_once_and_the_next_as_these_end(make):
    encoder = make(limits={"max_active": 2})
    encoder.start()
    stop_process(encoder)
    waiting = gevent.spawn(encode, encoder, *[image(seed) for seed in range(6)], image(0))

    def under_way() -> int:
        stats = encoder.stats().transfers
        return stats.n_active + stats.n_queued

    wait_until(lambda: under_way() == 4)
    os.kill(encoder.pid, signal.SIGCONT)

    assert len(waiting.get(timeout=30)) == 6
    assert encoder.stats().transfers.n_rounds == 6


def test_a_request_waits_no_longer_than_its_deadline(encoder):
    stop_process(encoder)

    with gevent.Timeout(30), pytest.raises(DeadlinePassed):
        encode_images(encoder, [image()], Terms(deadline=time.monotonic() + 0.2), NobodyLeaves)

    assert is_idle(encoder)


def test_a_request_without_images_asks_nobody(encoder):
    assert encode_images(encoder, [], Terms(deadline=0.0), NobodyLeaves) == {}


def test_each_watch_is_closed_however_its_request_ends(encoder):
    closed = []

    class Noting(NobodyLeaves):
        def close(self) -> None:
            closed.append(self)

    assert encode_images(encoder, [image()], Terms(deadline=time.monotonic() + 30), Noting)
    with pytest.raises(DeadlinePassed):
        encode_images(encoder, [image(2)], Terms(deadline=0.0), Noting)

    assert len(closed) == 2


def test_a_projector_that_kills_libmtmd_is_refused_in_words(make, tmp_path):
    broken = projector.write_mlp(tmp_path / "broken.gguf", N_EMBD, lacks=["mm.2.weight", "mm.2.bias"])
    encoder = make(broken)

    with pytest.raises(LoadError, match=r"while it opened the projector .*broken\.gguf"):
        encoder.start()


def test_a_projector_of_another_width_is_refused_in_words(make, tmp_path):
    encoder = make(projector.write_mlp(tmp_path / "wide.gguf", 2 * N_EMBD))

    with pytest.raises(LoadError, match="cannot be used with this model"):
        encoder.start()


def test_who_starts_an_encoder_that_is_closed_meanwhile_is_told_of_the_end(make):
    encoder = make()
    starting = gevent.spawn(encoder.start)
    wait_until(lambda: encoder.pid is not None)

    encoder.close()

    with pytest.raises(ShuttingDown, match="the model is being unloaded"):
        starting.get(timeout=30)


def test_those_who_wait_hear_of_the_end_and_nothing_is_left(make):
    encoder = make()
    encoder.start()
    pid = encoder.pid
    stop_process(encoder)
    waiting = gevent.spawn(encode, encoder, image())
    wait_until(lambda: encoder.stats().transfers.n_active == 1)

    encoder.drain("the server is shutting down")

    with pytest.raises(ShuttingDown, match="the server is shutting down"):
        waiting.get(timeout=30)
    with pytest.raises(ShuttingDown):
        encode(encoder, image(2))
    encoder.close()
    assert not os.path.exists(f"/proc/{pid}")


def test_an_image_whose_rows_have_too_many_bytes_is_refused_for_them(make, model):
    limits = encoder_options(ModelSettings(model=str(model)), N_EMBD).limits
    encoder = make(limits={"staging_budget": 2 * 4 * N_EMBD, "max_rows": limits.max_rows})
    encoder.start()

    with pytest.raises(Refused, match=r"has \d+ rows, more than the memory for rows holds") as caught:
        encode(encoder, image())

    assert limits.max_rows * 4 * N_EMBD > limits.staging_budget
    assert caught.value.code == "image_not_encoded"
