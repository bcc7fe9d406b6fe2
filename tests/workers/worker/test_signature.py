# ruff: noqa: RUF036, UP007, UP045 - authors write Optional and Union, too
import enum
import functools
import os
import pathlib
import types
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterator
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import pytest

from corosrv.base.errors import SignatureError
from corosrv.worker import (
    AsyncConcatenateIterator,
    BasePredictor,
    BaseRunner,
    ConcatenateIterator,
    File,
    Input,
    Opaque,
    Path,
    Secret,
    concurrent,
    streaming,
)
from corosrv.workers.worker.predictor import MISSING
from corosrv.workers.worker.signatures.shapes import (
    AnyObject,
    AnyOf,
    Anything,
    DictOf,
    Fetched,
    Hidden,
    ListOf,
    Nullable,
    OneOf,
    Scalar,
)
from corosrv.workers.worker.signatures.signature import read


class Colour(str, enum.Enum):
    RED = "red"
    BLUE = "blue"


class Odd(enum.Enum):
    FINE = "fine"
    NOT = object()


class Settings(TypedDict):
    size: int


def _read_one(annotation, *default):
    def run(x): ...

    run.__annotations__["x"] = annotation
    run.__defaults__ = default or None
    return read(run).inputs[0]


@pytest.mark.parametrize(
    ("annotation", "shape"),
    [
        (str, Scalar(str)),
        (bool, Scalar(bool)),
        (Path, Fetched(Path)),
        (pathlib.Path, Fetched(pathlib.Path)),
        (File, Fetched(File, is_open=True)),
        (Secret, Hidden(Secret)),
        (os.PathLike, Fetched(Path)),
        (Any, Anything()),
        (object, Anything()),
        (list, ListOf(Anything())),
        (list[int], ListOf(Scalar(int))),
        (list[list[float]], ListOf(ListOf(Scalar(float)))),
        (list[Path], ListOf(Fetched(Path))),
        (dict, AnyObject()),
        (dict[str, Any], AnyObject()),
        (dict[str, int], DictOf(Scalar(int))),
        (Settings, AnyObject()),
        (Optional[int], Nullable(Scalar(int))),
        (list[str] | None, Nullable(ListOf(Scalar(str)))),
        (list[int | None], ListOf(Nullable(Scalar(int)))),
        (int | str, AnyOf((Scalar(int), Scalar(str)))),
        (int | str | None, Nullable(AnyOf((Scalar(int), Scalar(str))))),
        (Literal["a", "b"], OneOf(("a", "b"))),
        (Literal["a", None], Nullable(OneOf(("a",)))),
        (Colour, OneOf(("red", "blue"), Colour)),
        (Annotated[str, "anything"], Scalar(str)),
        (Annotated[Colour, Opaque], AnyObject()),
        (Annotated[dict[str, int], Opaque], AnyObject()),
        (Annotated[list[Colour], Opaque], ListOf(AnyObject())),
        (Annotated[Colour | None, Opaque], Nullable(AnyObject())),
        (Annotated[Union[None, Colour], Opaque], Nullable(AnyObject())),
        ("int | None", Nullable(Scalar(int))),
    ],
)
def test_an_annotation_has_its_shape(annotation, shape):
    assert _read_one(annotation).shape == shape


@pytest.mark.parametrize("annotation", [bytes, object(), set[str], Odd, type("Mine", (), {}), "Nowhere"])
def test_a_type_that_json_does_not_have_is_refused_by_the_inputs_name(annotation):
    with pytest.raises(SignatureError, match=r"x|Nowhere"):
        _read_one(annotation)


@pytest.mark.parametrize(
    ("annotation", "default", "json", "is_required"),
    [
        (int, (), MISSING, True),
        (int, (Input(),), MISSING, True),
        (int, (3,), 3, False),
        (int, (Input(default=3, ge=1, le=5),), 3, False),
        (str, (Input(default="abc", min_length=1, max_length=5, regex="b"),), "abc", False),
        (float, (3,), 3.0, False),
        (int, (None,), None, False),
        (Any, (None,), None, False),
        (Any, (), MISSING, True),
        (Optional[int], (), MISSING, False),
        (Optional[int], (Input(default=5),), 5, False),
        (Path, ("https://example.com/a.png",), "https://example.com/a.png", False),
        (Path, (Path("/model/a.png"),), "/model/a.png", False),
        (Secret, ("key",), "*" * 10, False),
        (Secret, (Secret("key"),), "*" * 10, False),
        (Colour, (Colour.RED,), "red", False),
        (list[str], (("a", "b"),), ["a", "b"], False),
        (dict, ({"a": [1]},), {"a": [1]}, False),
        (int | str, ("3",), "3", False),
        (Annotated[int, Input(ge=1)], (2,), 2, False),
    ],
)
def test_a_default_is_what_a_client_could_have_sent(annotation, default, json, is_required):
    field = _read_one(annotation, *default)

    assert (field.default, field.is_required) == (json, is_required)
    assert type(field.default) is type(json)


@pytest.mark.parametrize(
    ("annotation", "default"),
    [
        (int, "3"),
        (int, 3.5),
        (bool, 1),
        (str, 3),
        (int, Input(default=0, ge=1)),
        (int, Input(default=9, le=8)),
        (str, Input(default="", min_length=1)),
        (str, Input(default="abc", max_length=2)),
        (str, Input(default="abc", regex="^x")),
        (str, Input(default="c", choices=["a", "b"])),
        (list[int], [1, "a"]),
        (dict, {"a": float("nan")}),
        (dict, {"a": object()}),
        (int | str, 3.5),
        (str, Input(regex="(")),
        (str, Input(ge=1)),
        (str, Input(le=1)),
        (int, Input(min_length=1)),
        (int, Input(regex="a")),
        (Path, Input(choices=["a"])),
        (str, Input(choices=[])),
        (str, Input(choices=["a", 1])),
        (Colour, Input(choices=["red"])),
        (str, Input(accept="image/*")),
    ],
)
def test_what_an_author_says_against_his_own_type_stops_the_setup(annotation, default):
    with pytest.raises(SignatureError, match=r"^x: "):
        _read_one(annotation, default)


def test_choices_of_a_list_are_those_of_its_members():
    field = _read_one(list[str], Input(choices=["a", "b"], default=["b"]))

    assert field.shape == ListOf(OneOf(("a", "b")))


def test_choices_may_be_members_of_an_enum():
    assert _read_one(str, Input(choices=list(Colour))).shape == OneOf(("red", "blue"))


def test_what_annotated_says_counts_and_the_default_stands_behind_the_equals_sign():
    field = _read_one(Annotated[int, Input(description="how many", ge=1)], 4)

    assert (field.info.description, field.info.ge, field.default) == ("how many", 1, 4)


def _outputs():
    def text() -> str: ...
    def nothing(): ...
    def texts() -> Iterator[str]: ...
    def joined() -> ConcatenateIterator[str]: ...
    def bare() -> ConcatenateIterator: ...
    def pair() -> tuple[int, str]: ...
    def numbers() -> tuple[int, ...]: ...
    def unknown() -> Odd: ...
    async def later() -> AsyncIterator[Path]: ...
    async def joined_later() -> AsyncConcatenateIterator[str]: ...
    def awaited() -> Awaitable[str]: ...
    def iterated() -> AsyncIterable[str]: ...
    def each() -> int:
        yield 1

    def whole() -> list[int]:
        yield 1

    async def unsaid():
        yield 1

    return [
        (awaited, Scalar(str), False, False),
        (iterated, Scalar(str), True, False),
        (each, Scalar(int), True, False),
        (whole, Scalar(int), True, False),
        (unsaid, Anything(), True, False),
        (text, Scalar(str), False, False),
        (nothing, Anything(), False, False),
        (texts, Scalar(str), True, False),
        (joined, Scalar(str), True, True),
        (bare, Scalar(str), True, True),
        (pair, ListOf(AnyOf((Scalar(int), Scalar(str)))), False, False),
        (numbers, ListOf(Scalar(int)), False, False),
        (unknown, Anything(), False, False),
        (later, Fetched(Path), True, False),
        (joined_later, Scalar(str), True, True),
    ]


@pytest.mark.parametrize(("function", "shape", "is_iterator", "is_concatenated"), _outputs())
def test_an_output_has_its_shape(function, shape, is_iterator, is_concatenated):
    output = read(function).output

    assert (output.shape, output.is_iterator, output.is_concatenated) == (shape, is_iterator, is_concatenated)


def test_what_kind_of_function_it_is_is_seen():
    def plain() -> str: ...
    async def coroutine() -> str: ...
    def generator() -> Iterator[str]:
        yield ""

    async def stream() -> AsyncIterator[str]:
        yield ""

    kinds = [(read(f).is_async, read(f).is_generator) for f in (plain, coroutine, generator, stream)]

    assert kinds == [(False, False), (True, False), (False, True), (True, True)]


def test_what_hands_on_the_async_work_of_others_is_async():
    def stream() -> AsyncIterator[str]: ...
    def joined() -> AsyncConcatenateIterator[str]: ...
    def awaited() -> Awaitable[str]: ...
    def misnamed() -> AsyncIterator[str]:
        yield ""

    class Runner:
        async def __call__(self) -> str: ...

    functions = (stream, joined, awaited, Runner(), functools.partial(Runner.__call__, None), misnamed)

    assert [read(function).is_async for function in functions] == [True, True, True, True, True, False]


def test_decorators_are_looked_through_with_and_without_wraps():
    def polite(function):
        @functools.wraps(function)
        def inner(*arguments, **named):
            return function(*arguments, **named)

        return inner

    def rude(function):
        def inner(*arguments, **named):
            return function(*arguments, **named)

        return inner

    @rude
    @polite
    def run(prompt: str, n: int = 2) -> str: ...

    assert [field.name for field in read(run).inputs] == ["prompt", "n"]


def test_a_class_is_read_by_the_method_that_its_author_wrote():
    class Runner(BaseRunner):
        @streaming
        def run(self, prompt: str) -> Iterator[str]: ...

    class Older(BasePredictor):
        def setup(self, weights): ...

        @concurrent(max=4)
        async def predict(self, n: int) -> str: ...

    new, old = read(Runner), read(Older)

    assert (new.method, new.inputs[0].name, new.is_streaming, new.concurrency) == ("run", "prompt", True, None)
    assert (old.method, old.is_streaming, old.concurrency, old.takes_weights) == ("predict", False, 4, True)
    assert not new.takes_weights


def _streaming_of_cog():
    def streaming(function=None):
        """As Cog's, which gives back the function as it was."""
        return function or (lambda inner: inner)

    streaming.__module__ = "cog"
    return streaming


mark = _streaming_of_cog()
package = types.SimpleNamespace(streaming=mark)


@mark
def marked() -> Iterator[str]: ...


@mark()
def marked_by_call() -> Iterator[str]: ...


@package.streaming
def marked_by_package() -> Iterator[str]: ...


@functools.lru_cache
def marked_otherwise() -> Iterator[str]: ...


def test_a_mark_of_cogs_is_found_in_the_source_under_any_name():
    functions = [marked, marked_by_call, marked_by_package, marked_otherwise, eval("lambda: 0")]

    assert [read(function).is_streaming for function in functions] == [True, True, True, False, False]


def test_the_number_that_cogs_concurrent_leaves_is_read():
    async def run() -> str: ...

    run.__cog_concurrent_max__ = 3

    assert read(run).concurrency == 3


def test_a_method_without_self_keeps_its_first_parameter():
    class Runner:
        @staticmethod
        def run(prompt: str) -> str: ...

    assert [field.name for field in read(Runner).inputs] == ["prompt"]


def test_a_class_with_both_methods_or_none_is_refused():
    class Both:
        def run(self): ...
        def predict(self): ...

    class Neither(BaseRunner): ...

    with pytest.raises(SignatureError, match=r"both run\(\) and predict\(\)"):
        read(Both)
    with pytest.raises(SignatureError, match="neither"):
        read(Neither)


def test_inputs_without_a_name_or_type_of_their_own_are_refused():
    def star(*prompts: str): ...
    def named(**options: str): ...
    def bare(prompt): ...

    for function, words in ((star, "prompts"), (named, "options"), (bare, "prompt: an input needs an annotation")):
        with pytest.raises(SignatureError, match=words):
            read(function)
