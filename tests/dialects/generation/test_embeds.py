"""The field prompt_embeds: what is read of it, and how everything else is refused before it is decoded."""

from __future__ import annotations

import base64
import io
import json
import math
import pickle
import struct
import zipfile
from typing import Any

import pytest

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import ModelCard
from corosrv.dialects.generation.prompts import EmbedsReader

CARD = ModelCard("tiny", created=1, row_width=3, max_rows=4)
NUMBERS = (0.0, -0.0, 1.0, -2.5, 65504.0, 2**-24)  # two rows, of numbers that a half can hold
ROWS = struct.pack("<6f", *NUMBERS)


def field(data: bytes = ROWS, dtype: Any = "f32", shape: Any = (2, 3), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data": base64.b64encode(data).decode(), **more}


def read(value: Any, *, is_enabled: bool = True, has_prompt: bool = False, card: ModelCard = CARD) -> bytes:
    return EmbedsReader(is_enabled, lambda: card).read(value, has_prompt).data


def code_of(value: Any, **chosen: Any) -> str | None:
    with pytest.raises(Refused) as refused:
        read(value, **chosen)
    assert refused.value.status == 400
    assert refused.value.param == "prompt_embeds"
    return refused.value.code


def bf16(*numbers: float) -> bytes:
    return b"".join(struct.pack("<f", number)[2:] for number in numbers)


def npy() -> bytes:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + ROWS


def torch_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps([0.0] * 6))
        archive.writestr("archive/data/0", bytes(1 << 20))  # expands a thousandfold
    return file.getvalue()


class Armed:
    """Tells by its call that somebody unpickled it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("it was unpickled",)


def test_rows_of_float32_are_taken_as_they_are():
    assert read(field()) == ROWS


def test_halves_are_widened_to_the_same_numbers():
    assert read(field(struct.pack("<6e", *NUMBERS), "f16")) == ROWS


def test_bfloat16_numbers_are_widened_to_the_same_numbers():
    numbers = (0.0, -0.0, 1.0, -2.5, 3.3895313892515355e38, 2.0**-130)

    assert read(field(bf16(*numbers), "bf16")) == struct.pack("<6f", *numbers)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("gASVKAAAAAAAAAA=", "bad_shape"),
        ([1, 2], "bad_shape"),
        (True, "bad_shape"),
        (field(format="npy"), "bad_shape"),
        ({}, "bad_dtype"),
        ({"shape": [2, 3], "data": ""}, "bad_dtype"),
        (field(dtype="f64"), "bad_dtype"),
        (field(dtype=["f32"]), "bad_dtype"),
        (field(dtype=None), "bad_dtype"),
        ({"dtype": "f32", "data": ""}, "bad_shape"),
        (field(shape=(6,)), "bad_shape"),
        (field(shape=(1, 2, 3)), "bad_shape"),
        (field(shape=(2.0, 3)), "bad_shape"),
        (field(shape=(True, 3)), "bad_shape"),
        (field(shape=("2", 3)), "bad_shape"),
        (field(shape=(0, 3)), "bad_shape"),
        (field(shape=(-2, -3)), "bad_shape"),
        (field(shape=(3, 2)), "bad_shape"),
        (field(shape=(5, 3)), "too_long"),
        (field(shape=(2**70, 3)), "too_long"),
        (field(shape=(2, 2**70)), "bad_shape"),
        ({"dtype": "f32", "shape": [2, 3]}, "bad_base64"),
        (field() | {"data": 7}, "bad_base64"),
        (field() | {"data": "A" * 31}, "bad_base64"),
        (field() | {"data": "A" * 28 + "AA A"}, "bad_base64"),
        (field() | {"data": "A" * 28 + "AA\nA"}, "bad_base64"),
        (field() | {"data": "A" * 28 + "AA-_"}, "bad_base64"),
        (field() | {"data": "A" * 26 + "==" + "AAAA"}, "bad_base64"),
        (field() | {"data": "A" * 31 + "\u00e9"}, "bad_base64"),
        (field() | {"data": ""}, "length"),
        (field(ROWS[:-1]), "length"),
        (field(ROWS[:-4]), "length"),
        (field(ROWS + ROWS[:4]), "length"),
        (field(dtype="f16"), "length"),
        (field(npy()), "length"),
        (field(torch_zip()), "length"),
        (field(pickle.dumps(Armed())), "length"),
    ],
)
def test_what_is_not_as_it_must_be_is_refused_by_its_code(value: Any, code: str):
    assert code_of(json.loads(json.dumps(value))) == f"embeds_{code}"


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 5])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_number_that_is_not_finite_is_refused(number: float, place: int, dtype: str):
    numbers = [1.0] * 6
    numbers[place] = number
    packed = {"f32": struct.pack("<6f", *numbers), "f16": struct.pack("<6e", *numbers), "bf16": bf16(*numbers)}

    assert code_of(field(packed[dtype], dtype)) == "embeds_not_finite"


def test_infinities_that_would_cancel_each_other_are_refused_and_large_numbers_are_not():
    largest = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

    assert code_of(field(struct.pack("<6f", math.inf, -math.inf, 0, 0, 0, 0))) == "embeds_not_finite"
    assert read(field(struct.pack("<6f", *[largest] * 6))) == struct.pack("<6f", *[largest] * 6)


def test_a_payload_in_plain_bytes_is_read_as_numbers_and_never_opened():
    armed = pickle.dumps(Armed())
    data = (armed + bytes(24))[:24]

    assert read(field(data)) == data


def test_a_server_that_takes_no_rows_says_so_first():
    assert code_of("anything", is_enabled=False, has_prompt=True) == "embeds_disabled"
    assert code_of(field(), card=ModelCard("rowless", created=1)) == "embeds_disabled"


def test_rows_beside_a_prompt_are_refused():
    assert code_of(field(), has_prompt=True) == "embeds_and_prompt"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_many_rows_are_decoded_in_pieces_in_a_thread(dtype: str):
    width, n = 32, 6000
    card = ModelCard("wide", created=1, row_width=width, max_rows=n)
    numbers = [float(i % 251 - 125) for i in range(n * width)]
    packed = {
        "f32": lambda: struct.pack(f"<{len(numbers)}f", *numbers),
        "f16": lambda: struct.pack(f"<{len(numbers)}e", *numbers),
        "bf16": lambda: bf16(*numbers),
    }[dtype]()
    calls: list[Any] = []

    def call(function: Any, *arguments: Any) -> Any:
        calls.append(function)
        return function(*arguments)

    rows = EmbedsReader(True, lambda: card, call).read(field(packed, dtype, (n, width)), has_prompt=False).data

    assert rows == struct.pack(f"<{len(numbers)}f", *numbers)
    assert len(calls) == 1
    spoiled = packed[: -len(packed) // n] + b"\xff" * (len(packed) // n)
    assert code_of(field(spoiled, dtype, (n, width)), card=card) == "embeds_not_finite"
    broken = field(packed, dtype, (n, width))
    broken["data"] = "=" + broken["data"][1:]
    assert code_of(broken, card=card) == "embeds_bad_base64"
