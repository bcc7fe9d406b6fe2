"""The encoder as a process of its own, driven message by message."""

import functools
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from corosrv.contracts.settings import ModelSettings
from corosrv.images.transfer.messages import (
    MROPE,
    PROTOCOL_VERSION,
    BlocksFilled,
    CancelTransfer,
    CloseTransfer,
    EncodeFailed,
    Hello,
    ImageMeasured,
    ImagePixels,
    MeasureImage,
    OpenTransfer,
    RowSegment,
    TransferAborted,
    TransferMeta,
)
from corosrv.images.transfer.pool import BlockHeader
from corosrv.images.vision.engine import encoder_command
from tests.images.encoder.pool import EPOCH, HandDriver, HandPool, TokenDriver, geometry, unsealed_copy
from tests.support import gguf, projector

N_EMBD = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(gguf.write_llama(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture(scope="module")
def mmproj(tmp_path_factory):
    return str(projector.write_mlp(tmp_path_factory.mktemp("projector") / "mlp.gguf", N_EMBD))


@pytest.fixture
def pool():
    pool = HandPool(geometry(n_embd=N_EMBD))
    yield pool
    pool.close()


@pytest.fixture
def start():
    drivers = []

    def start(*arguments, kind: type[HandDriver] = HandDriver) -> HandDriver:
        drivers.append(kind(*arguments))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


@pytest.fixture
def encoder(start, model, mmproj, pool):
    driver = start(model, mmproj)
    driver.greet(pool, N_EMBD)
    assert driver.answer() == Hello(EPOCH, PROTOCOL_VERSION, pool.geometry, N_EMBD)
    return driver


def table_rows(path: str, ids: tuple[int, ...]) -> list[tuple[float, ...]]:
    """The rows of the tiny model's table, drawn as its writer drew them."""
    shapes = {"token_embd.weight": (N_EMBD, 259)}
    _, values = gguf.random_tensors(shapes)["token_embd.weight"]
    single = struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values))
    return [single[token * N_EMBD : (token + 1) * N_EMBD] for token in ids]


def test_rows_come_in_rounds_through_two_blocks(start, pool, model, mmproj):
    ids, encoder = tuple(range(40, 60)), start(model, mmproj, kind=TokenDriver)
    encoder.greet(pool, N_EMBD)
    encoder.answer()
    encoder.open_tokens(1, ids)
    meta = encoder.answer()
    rows = []

    for gen, offset in ((1, 0), (2, 16)):
        encoder.grant(pool, 1, gen, offset, (3, 1))
        filled = encoder.answer()
        assert filled == BlocksFilled(EPOCH, 1, gen, offset, min(16, 20 - offset), 20)
        rows += pool.rows(3) + pool.rows(1)

    assert meta == TransferMeta(EPOCH, 1, 20, N_EMBD, (RowSegment(20),))
    assert rows == table_rows(model, ids)
    assert [pool.header(block) for block in (3, 1)] == [
        BlockHeader(EPOCH, 1, 2, 16, 4),
        BlockHeader(EPOCH, 1, 2, 24, 0),
    ]


def test_an_image_becomes_sixteen_finite_rows(encoder, pool):
    encoder.open_image(1, 56, 56, projector.random_pixels())
    meta = encoder.answer()
    encoder.grant(pool, 1, 1, 0, (0, 1))

    assert encoder.answer() == BlocksFilled(EPOCH, 1, 1, 0, 16, 16)
    assert meta == TransferMeta(EPOCH, 1, 16, N_EMBD, (RowSegment(16, n_positions=16),))
    rows = pool.rows(0) + pool.rows(1)
    assert len(set(rows)) == 16
    assert all(abs(number) < 1e6 for row in rows for number in row)


def test_the_tokens_of_a_size_are_told_and_none_of_a_size_that_is_none(encoder):
    encoder.send(MeasureImage(EPOCH, 56, 56))
    encoder.send(MeasureImage(EPOCH, 0, 56))

    assert [encoder.answer(), encoder.answer()] == [ImageMeasured(EPOCH, 56, 56, 16), ImageMeasured(EPOCH, 0, 56, 0)]


def test_a_size_is_told_before_the_images_that_wait(encoder):
    os.kill(encoder.process.pid, signal.SIGSTOP)  # until all of them wait, however fast it is
    for tid in range(1, 5):
        encoder.open_image(tid, 56, 56, projector.random_pixels())
    encoder.send(MeasureImage(EPOCH, 28, 56))
    os.kill(encoder.process.pid, signal.SIGCONT)

    answers = [encoder.answer() for _ in range(5)]
    assert [type(answer) for answer in answers].index(ImageMeasured) < 4


def test_a_second_grant_of_one_generation_and_one_after_a_cancel_write_nothing(encoder, pool):
    encoder.open_image(1, 56, 56, projector.random_pixels())
    encoder.answer()
    encoder.grant(pool, 1, 1, 0, (0,))
    filled, content = encoder.answer(), pool.content()

    encoder.grant(pool, 1, 1, 0, (2,))
    again = encoder.answer()
    encoder.send(CancelTransfer(EPOCH, 1))
    aborted = encoder.answer()
    encoder.grant(pool, 1, 2, 8, (3,))
    encoder.open_image(2, 56, 56, projector.random_pixels())  # whose answer shows that the grant was handled

    assert (again, aborted) == (filled, TransferAborted(EPOCH, 1))
    assert encoder.answer() == TransferMeta(EPOCH, 2, 16, N_EMBD, (RowSegment(16, n_positions=16),))
    assert pool.content() == content


def test_descriptors_of_images_do_not_stay_open(encoder):
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{encoder.process.pid}/fd"))

    before = descriptors()
    for tid in range(1, 9):
        encoder.open_image(tid, 56, 56, projector.random_pixels())
        assert isinstance(encoder.answer(), TransferMeta)
        encoder.open_image(tid, 56, 56, projector.random_pixels())  # a duplicate, which is ignored
        encoder.send(CloseTransfer(EPOCH, tid))
    encoder.open_image(9, 56, 56, projector.random_pixels())
    encoder.answer()

    assert descriptors() == before


@pytest.mark.parametrize("size", [(56, 55), (0, 0), (1 << 40, 1)], ids=["too few", "none", "huge"])
def test_pixels_that_are_no_image_of_their_size_are_refused_in_words(encoder, size):
    encoder.open_image(1, *size, projector.random_pixels())

    failed = encoder.answer()

    assert isinstance(failed, EncodeFailed)
    assert (failed.code, failed.tid) == ("bad_image", 1)


@pytest.mark.parametrize(
    "width_height_pixels", [(0, 10, b""), (40_000, 1, bytes(120_000))], ids=["no pixels", "over the limit of a side"]
)
def test_images_that_libmtmd_cannot_take_are_refused(encoder, width_height_pixels):
    encoder.open_image(1, *width_height_pixels)

    assert encoder.answer().code == "bad_image"


@pytest.mark.parametrize(
    ("write_model", "write_projector"),
    [
        (gguf.write_llama, projector.write_mlp),
        (functools.partial(gguf.write_llama, special=projector.IDEFICS3_TOKENS), projector.write_idefics3),
        (gguf.write_qwen2vl, projector.write_qwen2vl),
    ],
    ids=["one size", "tiles", "any size"],
)
def test_images_of_absurd_shapes_are_encoded_or_refused(start, tmp_path, pool, write_model, write_projector):
    files = write_model(tmp_path / "m.gguf"), write_projector(tmp_path / "p.gguf", N_EMBD)
    driver = start(*map(str, files), (MROPE,))
    driver.greet(pool)
    driver.answer()
    shapes = ((1, 1), (1, 4000), (4000, 1), (2, 3), (57, 55), (1, 32_768))

    for tid, (width, height) in enumerate(shapes, start=1):
        driver.open_image(tid, width, height, bytes(3 * width * height))
    answers = [driver.answer() for _ in shapes]

    assert [answer.tid for answer in answers] == [1, 2, 3, 4, 5, 6]
    assert {answer.tid for answer in answers if isinstance(answer, TransferMeta)} >= {1, 4, 5}
    assert {answer.code for answer in answers if isinstance(answer, EncodeFailed)} <= {"tokenize"}


def test_an_image_without_its_pixels_is_refused(encoder):
    encoder.send(OpenTransfer(EPOCH, 1, ImagePixels(56, 56)))

    assert encoder.answer().code == "bad_image"


def test_a_projector_of_another_width_is_refused_in_words(start, model, tmp_path):
    driver = start(model, str(projector.write_mlp(tmp_path / "wide.gguf", 64)))

    assert driver.wait_for_end() == "exit code 1"
    assert re.match(
        r"the encoder cannot serve: the projector .*/wide.gguf cannot be used .* \(n_embd = 32\) .* \(n_embd = 64\)",
        driver.report(),
    )


@pytest.mark.parametrize(
    ("write_model", "write_projector", "words"),
    [
        (gguf.write_qwen2vl, projector.write_qwen2vl, "M-RoPE positions"),
        (gguf.write_llama, projector.write_gemma3, "attention that is not causal"),
    ],
    ids=["M-RoPE", "non-causal"],
)
def test_a_projector_whose_rows_nobody_can_read_is_refused_by_name(
    start, tmp_path, write_model, write_projector, words
):
    driver = start(str(write_model(tmp_path / "m.gguf")), str(write_projector(tmp_path / "p.gguf", N_EMBD)))

    assert driver.wait_for_end() == "exit code 1"
    assert f"p.gguf needs {words}, which this version does not support" in driver.fatal


@pytest.mark.parametrize(
    ("option", "limit", "side", "n_rows"),
    [
        pytest.param("--image-max-tokens", 0, 392, 196, id="large, as the file says"),
        pytest.param("--image-max-tokens", 25, 392, 25, id="limited"),
        pytest.param("--image-min-tokens", 0, 112, 16, id="small, as the file says"),
        pytest.param("--image-min-tokens", 100, 112, 100, id="enlarged"),
    ],
)
def test_an_image_has_as_many_rows_as_it_may_and_must(start, tmp_path, option, limit, side, n_rows):
    files = gguf.write_qwen2vl(tmp_path / "m.gguf"), projector.write_qwen2vl(tmp_path / "p.gguf", N_EMBD)
    driver, pool = start(*map(str, files), (MROPE,), [option, str(limit)]), HandPool(geometry())
    driver.greet(pool)
    driver.answer()

    driver.open_image(1, side, side, projector.random_pixels(side, side))

    assert driver.answer().total == n_rows
    pool.close()


OPEN_BOTH = """
import sys
from corosrv.images.encoder import mtmd, opening

init = mtmd.mtmd_cpp.mtmd_init_from_file

def told(path, model, parameters):
    print(parameters.use_gpu)
    return init(path, model, parameters)

mtmd.mtmd_cpp.mtmd_init_from_file = told
for on_gpu in (True, False):
    opening.open_projector(mtmd.ProjectorOptions(model=sys.argv[1], mmproj=sys.argv[2], on_gpu=on_gpu))
"""


def test_libmtmd_is_told_whether_it_may_use_a_gpu(model, mmproj):
    commands = [
        encoder_command(ModelSettings(model=model, mmproj=mmproj, mmproj_offload=is_on)).words
        for is_on in (True, False)
    ]
    done = subprocess.run([sys.executable, "-c", OPEN_BOTH, model, mmproj], capture_output=True, text=True, check=True)

    assert ["--on-processor" in words for words in commands] == [False, True]
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("missing", ["model", "projector"])
def test_a_missing_file_is_named(start, model, mmproj, missing):
    driver = start("/no/such.gguf", mmproj) if missing == "model" else start(model, "/no/such.gguf")

    assert driver.wait_for_end() == "exit code 1"
    assert "/no/such.gguf" in driver.fatal


def test_a_projector_that_kills_libmtmd_kills_the_encoder_alone(start, model, tmp_path):
    path = projector.write_mlp(tmp_path / "no_mm2.gguf", N_EMBD, lacks=["mm.2.weight", "mm.2.bias"])

    driver = start(model, str(path))

    assert driver.wait_for_end() == "signal 11 (SIGSEGV)"
    assert driver.report() == (
        f"the encoder process ended by signal 11 (SIGSEGV) while it opened the projector {path} and the model {model}; "
        "libmtmd does not survive a projector file that is damaged or lacks tensors"
    )


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (geometry(n_embd=64), "256 bytes"),
        (geometry(n_blocks=0), "holds nothing"),
        (msgspec.structs.replace(geometry(), stride=1000), "1000 bytes are too few"),
    ],
    ids=["width", "no blocks", "blocks that overlap"],
)
def test_a_pool_whose_blocks_hold_no_rows_of_the_model_is_refused_in_words(start, model, mmproj, shape, words):
    driver, bad_pool = start(model, mmproj), HandPool(shape)

    driver.greet(bad_pool)

    assert driver.wait_for_end() == "exit code 1"
    assert words in driver.fatal
    bad_pool.close()


def test_a_pool_that_can_be_resized_is_refused_in_words(start, model, mmproj, pool):
    driver = start(model, mmproj)

    with unsealed_copy(pool) as fd:
        driver.greet(pool, fd=fd)

    assert driver.wait_for_end() == "exit code 1"
    assert "can be resized" in driver.fatal


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"epoch": EPOCH + 1}, "describes another pool"),
        ({"version": PROTOCOL_VERSION + 1}, f"version {PROTOCOL_VERSION + 1}"),
    ],
)
def test_a_greeting_of_another_epoch_or_version_is_refused_in_words(start, model, mmproj, pool, changed, words):
    driver = start(model, mmproj)

    driver.greet(pool, **changed)

    assert driver.wait_for_end() == "exit code 1"
    assert words in driver.fatal


def test_an_encoder_that_is_killed_while_it_serves_is_reported_as_such(encoder):
    os.kill(encoder.process.pid, signal.SIGKILL)

    assert encoder.wait_for_end() == "signal 9 (SIGKILL)"
    assert encoder.report() == "the encoder process ended by signal 9 (SIGKILL) while it served"


def test_encoding_gives_way_and_answers_do_not(start, model, mmproj, pool):
    driver = start(model, mmproj, (), ["--nice", "7"])
    driver.greet(pool, N_EMBD)
    driver.answer()
    pid = driver.process.pid

    nice = {int(task): os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir(f"/proc/{pid}/task")}

    assert nice.pop(pid) - os.getpriority(os.PRIO_PROCESS, 0) == 7
    assert os.getpriority(os.PRIO_PROCESS, 0) in nice.values()
    group = Path(f"/proc/{pid}/autogroup")  # by which kernels for desktops weigh sessions against each other
    assert not group.exists() or group.read_text().endswith(f" nice {os.getpriority(os.PRIO_PROCESS, pid)}\n")


def test_the_encoder_ends_with_its_channel(encoder):
    encoder.process.control.hang_up()
    encoder.process.control.close()

    assert encoder.wait_for_end() in ("exit code 1", f"signal {signal.SIGKILL:d} (SIGKILL)")
