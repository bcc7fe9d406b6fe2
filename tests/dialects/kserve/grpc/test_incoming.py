"""Messages as they come: inflated off the event loop, and no further than a message may be long."""

from __future__ import annotations

import asyncio
import gzip
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from corosrv.base.errors import MessageTooLarge, Refused
from corosrv.dialects.kserve.grpc import incoming, protocol, service
from corosrv.dialects.kserve.grpc.budget import MessageBudget
from corosrv.dialects.kserve.grpc.front import GrpcConfig, GrpcFront
from corosrv.dialects.kserve.grpc.incoming import is_compressed, most_bytes, parse
from corosrv.dialects.kserve.grpc.service import LONG_MESSAGE, convert
from corosrv.formats.tensors import Tensor
from tests.dialects.kserve.grpc.client import Stub, infer_request, talk
from tests.dialects.kserve.grpc.conftest import serving
from tests.support.function_worker import FunctionWorker

LIMIT = 1 << 20
WAYS = [gzip.compress, zlib.compress]
COMPRESSIONS = [grpc.Compression.Gzip, grpc.Compression.Deflate]


def message(n_bytes: int) -> Any:
    return infer_request("echo", Tensor("x", "UINT8", [n_bytes], raw=bytes(n_bytes)), id="q")


def content(n_bytes: int) -> bytes:
    return bytes(message(n_bytes).SerializeToString())


@pytest.mark.parametrize("compress", [*WAYS, bytes])
def test_a_message_is_read_compressed_or_not(compress: Callable[[bytes], bytes]) -> None:
    assert parse(protocol.ModelInferRequest, compress(content(5000)), LIMIT) == message(5000)
    assert parse(protocol.ModelInferRequest, b"", LIMIT) == protocol.ModelInferRequest()


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("wbits", range(9, 16))
def test_zlib_s_form_is_known_whatever_its_level_and_window(level: int, wbits: int) -> None:
    compressor = zlib.compressobj(level, zlib.DEFLATED, wbits)

    assert is_compressed(compressor.compress(content(100)) + compressor.flush())


def test_no_message_that_begins_with_any_of_its_fields_is_taken_for_a_compressed_one() -> None:
    kinds = [getattr(protocol, name) for name in dir(protocol) if name.endswith("Request")]
    tags = {
        field.number << 3 | (0 if field.cpp_type == field.CPPTYPE_BOOL else 2)
        for kind in kinds
        for field in kind.DESCRIPTOR.fields
    }

    assert len(tags) > 6
    assert not [tag for tag in tags for second in range(256) if is_compressed(bytes([tag, second]))]


@pytest.mark.parametrize("compress", WAYS)
def test_a_message_may_be_as_long_as_the_limit_once_it_is_inflated_and_no_byte_longer(
    compress: Callable[[bytes], bytes],
) -> None:
    data = content(5000)

    assert parse(protocol.ModelInferRequest, compress(data), len(data)) == message(5000)
    for sent in (compress(data), data):
        with pytest.raises(MessageTooLarge, match=f"larger than the {len(data) - 1} bytes allowed"):
            parse(protocol.ModelInferRequest, sent, len(data) - 1)


@pytest.mark.parametrize("compress", WAYS)
def test_a_bomb_is_inflated_no_further_than_the_limit(compress: Callable[[bytes], bytes]) -> None:
    bomb = compress(bytes(100 * LIMIT))
    tracemalloc.start()
    try:
        with pytest.raises(MessageTooLarge):
            parse(protocol.ModelInferRequest, bomb, LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * LIMIT
    assert len(bomb) <= 100 * LIMIT <= most_bytes(bomb)


@pytest.mark.parametrize("compress", WAYS)
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:-9] + bytes(9), lambda data: data + b"x", lambda data: data[:20]],
    ids=["cut", "changed", "more behind it", "short"],
)
def test_damaged_data_are_refused(compress: Callable[[bytes], bytes], damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Refused, match="compressed message") as caught:
        parse(protocol.ModelInferRequest, damage(compress(content(5000))), LIMIT)

    assert caught.value.status == 400


@pytest.mark.parametrize("way", COMPRESSIONS, ids=["gzip", "deflate"])
def test_questions_may_be_compressed_too(front: GrpcFront, way: grpc.Compression) -> None:
    async def scenario(stub: Stub) -> Any:
        request = protocol.ModelMetadataRequest(name="n" * 2000)
        try:
            return await stub.unary("ModelMetadata", request, compression=way)
        except grpc.aio.AioRpcError as error:
            return error.code()

    assert talk(front.port, scenario) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("way", COMPRESSIONS, ids=["gzip", "deflate"])
def test_a_request_on_a_stream_that_inflates_over_the_limit_is_refused_and_the_stream_goes_on(
    worker: FunctionWorker, way: grpc.Compression
) -> None:
    async def scenario(stub: Stub) -> Any:
        stream = stub.stream(compression=way)
        await stream.write(message(100_000))
        error = await stream.read()
        await stream.write(message(100))
        return error, await stream.read()

    with serving(worker, GrpcConfig(max_message=10_000)) as small:
        error, answer = talk(small.port, scenario)

    assert error.error_message == "the message is larger than the 10000 bytes allowed"
    assert (answer.error_message, answer.infer_response.raw_output_contents[0]) == ("", bytes(100))


def test_a_small_message_that_may_become_large_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def parse_here(kind: Any, data: bytes, max_bytes: int) -> Any:
        threads.append(threading.current_thread())
        return parse(kind, data, max_bytes)

    monkeypatch.setattr(incoming, "parse", parse_here)

    async def read(data: bytes) -> None:
        with MessageBudget(64 << 20, 64 << 20).share() as share:
            await service.read_call(data, 10 << 20, share)

    asyncio.run(read(gzip.compress(content(2 << 20))))
    asyncio.run(read(gzip.compress(content(100))))
    asyncio.run(read(content(2000)))
    asyncio.run(read(content(2 << 20)))
    asyncio.run(read(content(5 << 20)))

    assert [thread is threading.main_thread() for thread in threads] == [False, True, True, True, False]


def test_two_long_messages_are_read_at_a_time_and_short_ones_meanwhile() -> None:
    pair, three = threading.Barrier(2), threading.Barrier(3)

    def work() -> bool:
        pair.wait(20)
        try:
            three.wait(1)
        except threading.BrokenBarrierError:
            return False
        return True

    async def scenario() -> tuple[str, list[bool]]:
        long = [asyncio.create_task(convert(LONG_MESSAGE, work)) for _ in range(6)]
        await asyncio.sleep(0)
        return await convert(10, str), await asyncio.gather(*long)

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == ("", [False] * 6)
