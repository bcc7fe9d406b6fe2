"""Applications: what can be registered, and what is refused at import."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from corosrv.contracts.jobs.infer import BatchLimits
from corosrv.worker import App, AppError, TensorSpec, Worker


@pytest.fixture
def app() -> App:
    return App("test")


def plain(request: Any) -> Any: ...


def cards(app: App, pool: int = 0) -> Any:
    return app.pools()[pool].cards()


async def coroutine(request: Any) -> Any: ...


def generator(request: Any, context: Any) -> Iterator[Any]:
    yield


async def async_generator(request: Any) -> AsyncIterator[Any]:
    yield


def with_stream(request: Any, context: Any, stream: Any) -> None: ...


class Callable_:
    async def __call__(self, request: Any) -> Any: ...


@pytest.mark.parametrize(
    ("handler", "is_stream", "is_async"),
    [
        (plain, False, False),
        (lambda request: None, False, False),
        (coroutine, False, True),
        (generator, True, False),
        (async_generator, True, True),
        (with_stream, True, False),
        (functools.partial(generator), True, False),
        (Callable_(), False, True),
        (Callable_().__call__, False, True),
    ],
)
def test_the_kind_of_a_handler_is_seen(app: App, handler: Any, is_stream: bool, is_async: bool) -> None:
    app.model("m")(handler)

    assert cards(app)[0].is_stream == is_stream
    assert app.pools()[0].groups[0].signature.kind.is_async == is_async


def test_options_are_on_the_card(app: App) -> None:
    specs = [TensorSpec("a", "INT32", [-1])]
    options: dict[str, Any] = {
        "version": "2",
        "inputs": specs,
        "outputs": specs,
        "platform": "mine",
        "concurrency": 3,
        "max_queue": 5,
        "slo_ms": 100,
        "timeout_ms": 50,
        "idempotent": True,
        "batch": {"max_size": 4, "max_delay_ms": 2},
        "default": True,
        "priority": 2,
        "admission": "predict",
    }

    app.model("m", **options)(plain)

    (card,) = cards(app)
    assert (card.name, card.version, card.is_default, card.platform) == ("m", "2", True, "mine")
    assert (card.inputs, card.outputs) == (specs, specs)
    assert (card.concurrency, card.max_queue, card.slo_ms, card.timeout_ms) == (3, 5, 100.0, 50.0)
    assert (card.is_idempotent, card.batch, card.priority, card.admission) == (True, BatchLimits(4, 2.0), 2, "predict")


def test_a_capability_takes_its_attributes_and_options_apart(app: App) -> None:
    app.capability(type="embed", size=8, is_fast=True, concurrency=2)(plain)

    (card,) = cards(app)
    assert (card.name, card.capability) == ("plain", {"type": "embed", "size": 8, "is_fast": True})
    assert card.concurrency == 2


def test_capabilities_that_differ_in_type_are_several(app: App) -> None:
    for value in (True, 1, "1"):
        app.capability(type=value)(plain)

    assert len(cards(app)) == 3


@pytest.mark.parametrize(
    ("outputs", "unary", "said"),
    [
        ([TensorSpec("text_output", "BYTES", [1])], None, "join"),
        ([TensorSpec("text_output", "INT32", [1])], None, "refuse"),
        ([], None, "refuse"),
        ([], "last", "last"),
        ([TensorSpec("text_output", "BYTES", [1])], "refuse", "refuse"),
    ],
)
def test_unary_calls_of_streams_are_joined_where_there_is_text(app: App, outputs: Any, unary: Any, said: str) -> None:
    app.model("m", outputs=outputs, unary=unary)(generator)

    assert cards(app)[0].unary == said


def test_the_decorators_give_back_what_they_got(app: App) -> None:
    class Counter(Worker):
        def handle(self, request: Any, context: Any) -> Any: ...

    assert app.model("m")(plain) is plain
    assert app.capability(type="m")(plain) is plain
    assert app.worker(models=["n"])(Counter) is Counter


def test_names_of_one_function_are_one_group(app: App) -> None:
    app.model("a")(plain)
    app.model("b")(generator)
    app.model("c")(plain)

    assert [(card.name, card.group) for card in cards(app)] == [("a", 0), ("c", 0), ("b", 1)]


def test_versions_of_a_model_may_be_different_functions(app: App) -> None:
    app.model("m", version="1")(plain)
    app.model("m", version="2", default=True)(generator)
    app.model("m")(coroutine)

    assert [card.version for card in cards(app)] == ["1", "2", ""]


def make_worker(**members: Any) -> type[Worker]:
    return type("Counter", (Worker,), {"handle": lambda self, request: None, **members})


def test_a_class_is_a_pool_of_its_own(app: App) -> None:
    app.model("m")(plain)
    app.worker(models=["n"], min=0, max=3, gpus=0.5, memory_mb=100, cold_start_ms=9)(make_worker())

    functions, counter = (pool.card() for pool in app.pools())
    assert (functions.name, functions.min_workers) == ("default", None)
    assert (counter.name, counter.min_workers, counter.max_workers) == ("Counter", 0, 3)
    assert (counter.gpus, counter.memory_mb, counter.cold_start_ms) == (0.5, 100, 9)


OPTIONS_REFUSED = [
    ({"version": 2}, "`version`: 2 is no name"),
    ({"version": "a/b"}, "'a/b' is no name"),
    ({"inputs": [("a", "INT32", [1])]}, "`inputs` must be a list of TensorSpec"),
    ({"outputs": TensorSpec("a", "INT32", [1])}, "`outputs` must be a list of TensorSpec"),
    ({"outputs": [TensorSpec("a", "INT32", [1])] * 2}, "`outputs` declares a name twice"),
    ({"platform": ""}, "`platform` must be a text"),
    ({"concurrency": 0}, "`concurrency` must be an integer of at least 1, not 0"),
    ({"concurrency": True}, "`concurrency` must be an integer"),
    ({"concurrency": "2"}, "`concurrency` must be an integer"),
    ({"max_queue": 1.5}, "`max_queue` must be an integer"),
    ({"slo_ms": "1"}, "`slo_ms` must be a number of milliseconds"),
    ({"timeout_ms": -1}, "`timeout_ms` must be a number of milliseconds"),
    ({"timeout_ms": float("nan")}, "`timeout_ms` must be a number of milliseconds"),
    ({"idempotent": 1}, "`idempotent` must be True or False"),
    ({"batch": 8}, "`batch` must be as {'max_size': 8, 'max_delay_ms': 2}"),
    ({"batch": {}}, "`batch['max_size']` must be an integer"),
    ({"batch": {"max_size": 2, "delay": 3}}, "`batch` has no member 'delay'"),
    ({"batch": {"max_size": 2, "max_delay_ms": "3"}}, "`batch['max_delay_ms']` must be a number"),
    ({"unary": "last"}, "`unary` is for handlers that stream, and this is a function"),
    ({"default": True}, "only a version can be the default"),
    ({"priority": 0}, "`priority` must be from 1 (first) to 9"),
    ({"admission": "always"}, "`admission` must be 'predict' or None"),
]


@pytest.mark.parametrize(("options", "problem"), OPTIONS_REFUSED)
def test_an_option_of_a_wrong_kind_names_model_and_option(app: App, options: Any, problem: str) -> None:
    with pytest.raises(AppError) as error:
        app.model("m", **options)(plain)

    assert str(error.value).startswith("m: ")
    assert problem in str(error.value)


def test_an_option_that_does_not_exist_is_refused(app: App) -> None:
    with pytest.raises(TypeError, match="concurency"):
        app.model("m", concurency=2)  # type: ignore[call-arg]


def no_parameter() -> Any: ...


def four(request: Any, context: Any, stream: Any, more: Any) -> Any: ...


def third_is_no_stream(request: Any, context: Any, output: Any) -> Any: ...


def takes_all(request: Any, *arguments: Any) -> Any: ...


def takes_names(request: Any, **options: Any) -> Any: ...


def needs_keyword(request: Any, *, name: Any) -> Any: ...


async def async_with_stream(request: Any, context: Any, stream: Any) -> Any: ...


def generator_with_stream(request: Any, context: Any, stream: Any) -> Any:
    yield


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (no_parameter, "no_parameter takes 0 parameters: write it as (request)"),
        (four, "four takes 4 parameters"),
        (third_is_no_stream, "third_is_no_stream has a third parameter that is not called `stream`"),
        (takes_all, "takes_all takes *arguments"),
        (takes_names, "takes_names takes *options"),
        (needs_keyword, "needs_keyword needs the keyword argument 'name', which nobody gives it"),
        (async_with_stream, "async_with_stream is a coroutine function, which takes no `stream`"),
        (generator_with_stream, "generator_with_stream is a generator, which takes no `stream`"),
        (17, "17 is no function"),
        (make_worker(), "Counter is no function; register a class with @app.worker"),
    ],
)
def test_a_signature_that_fits_no_kind_names_the_function(app: App, handler: Any, problem: str) -> None:
    with pytest.raises(AppError) as error:
        app.model("m")(handler)

    assert problem in str(error.value)


@pytest.mark.parametrize("handler", [generator, async_generator, with_stream])
def test_a_batch_handler_cannot_stream(app: App, handler: Any) -> None:
    with pytest.raises(AppError, match=r"m is a .*, which cannot take batches: leave out `batch`"):
        app.model("m", batch={"max_size": 2})(handler)


@pytest.mark.parametrize("version", [None, "1"])
def test_a_model_is_registered_once(app: App, version: Any) -> None:
    app.model("m", version=version)(plain)

    with pytest.raises(AppError, match=r"generator: the model 'm'.* is registered already, by plain: change one"):
        app.model("m", version=version)(generator)


def test_a_capability_is_registered_once(app: App) -> None:
    app.capability(a=8, b="x")(plain)

    with pytest.raises(AppError, match=r'the capability {"a":8.0,"b":"x"} is registered already, by plain'):
        app.capability(b="x", a=8.0)(generator)


def test_a_class_and_a_function_share_no_model(app: App) -> None:
    app.model("m")(plain)

    with pytest.raises(AppError, match=r"Counter.handle: the model 'm' is registered already, by plain"):
        app.worker(models=["m"])(make_worker())


def test_a_class_has_each_model_once(app: App) -> None:
    with pytest.raises(AppError, match="the model 'm' is registered already"):
        app.worker(models=["m", "m"])(make_worker())


def test_a_refused_registration_leaves_nothing(app: App) -> None:
    with pytest.raises(AppError):
        app.model("m", concurrency=0)(plain)
    with pytest.raises(AppError):
        app.worker(models=["m", "m"])(make_worker())

    assert app.pools() == []


def test_only_one_version_is_the_default(app: App) -> None:
    app.model("m", version="1", default=True)(plain)

    with pytest.raises(AppError, match="version '1' of 'm' is the default already"):
        app.model("m", version="2", default=True)(generator)


def test_names_of_one_function_agree_in_what_they_share(app: App) -> None:
    app.model("a", concurrency=2)(plain)

    with pytest.raises(AppError, match="plain is registered with concurrency 2 and 1: its names share their slots"):
        app.model("b")(plain)
    with pytest.raises(AppError, match="plain is registered with `batch` and without"):
        app.model("c", concurrency=2, batch={"max_size": 2})(plain)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 129, "a/b", 3, None])
def test_a_model_needs_a_name_that_fits_a_path(app: App, name: Any) -> None:
    with pytest.raises(AppError, match=r"plain: @app.model: .* is no name"):
        app.model(name)(plain)


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({}, "a capability needs attributes"),
        ({"concurrency": 2}, "a capability needs attributes"),
        ({"type": ["a"]}, "the attribute 'type' is \\['a'\\]: it may be a string, a number or a boolean"),
        ({"type": None}, "the attribute 'type' is None"),
        ({"size": float("inf")}, "the attribute 'size' is inf"),
        ({"type": "a", "version": "1"}, "a capability has no version"),
    ],
)
def test_attributes_are_scalars(app: App, attributes: Any, problem: str) -> None:
    with pytest.raises(AppError, match=f"plain: {problem}"):
        app.capability(**attributes)(plain)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "@app.worker needs models="),
        ({"models": "counter"}, "@app.worker needs models="),
        ({"capabilities": {"type": "a"}}, "@app.worker needs models="),
        ({"models": ["a b"]}, "'a b' is no name"),
        ({"models": ["m"], "min": -1}, "`min` must be a number of processes"),
        ({"models": ["m"], "max": 0}, "`max` must be at least 1"),
        ({"models": ["m"], "min": 3, "max": 2}, "`max` must be at least 1 and `min`"),
        ({"models": ["m"], "gpus": "1"}, "`gpus` must be a number"),
        ({"models": ["m"], "memory_mb": -1}, "`memory_mb` must be a number"),
        ({"models": ["m"], "minimum": 1}, "@app.worker has no option 'minimum'"),
        ({"models": ["m"], "concurrency": 0}, "`concurrency` must be an integer"),
    ],
)
def test_a_wrong_pool_names_its_class(app: App, arguments: Any, problem: str) -> None:
    with pytest.raises(AppError) as error:
        app.worker(**arguments)(make_worker())

    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("worker_class", "problem"),
    [
        (plain, "plain: @app.worker registers classes that derive from Worker"),
        (type("Other", (), {}), "Other: @app.worker registers classes that derive from Worker"),
        (type("Empty", (Worker,), {}), "Empty has no method handle"),
        (make_worker(handle=lambda: None), "Counter.handle takes 0 parameters beside `self`"),
        (make_worker(on_stop=plain, on_cleanup=plain), "Counter defines both on_stop and on_cleanup"),
    ],
)
def test_a_class_that_is_no_worker_is_named(app: App, worker_class: Any, problem: str) -> None:
    with pytest.raises(AppError) as error:
        app.worker(models=["m"])(worker_class)

    assert problem in str(error.value)


def test_two_classes_of_one_name_are_refused(app: App) -> None:
    app.worker(models=["m"])(make_worker())

    with pytest.raises(AppError, match="Counter: there is a pool of this name already"):
        app.worker(models=["n"])(make_worker())


def test_an_application_needs_a_name() -> None:
    with pytest.raises(AppError, match="App: '' is no name"):
        App("")


def test_texts_are_joined_only_where_a_text_is_declared() -> None:
    def words(request):
        yield {}

    def word(request): ...

    text, other = TensorSpec("text_output", "BYTES", [-1]), TensorSpec("other", "BYTES", [-1])
    app = App("a")
    with pytest.raises(AppError, match="m: unary='join' needs a declared BYTES output 'text_output'"):
        app.model("m", outputs=[other], unary="join")(words)

    app.model("streams", outputs=[text], unary="join")(words)
    app.model("answers", outputs=[text])(word)

    (pool,) = app.pools()
    assert [card.unary for card in pool.cards()] == ["join", "refuse"]


def test_a_capability_has_neither_version_nor_default() -> None:
    for options in ({"version": "1"}, {"default": True}):
        with pytest.raises(AppError, match="a capability has no version: leave out `version` and `default`"):
            App("a").capability(type="t", **options)(plain)


def test_keywords_with_defaults_are_the_authors_own() -> None:
    def scaled(request, *, scale=2): ...

    app = App("a")
    app.model("m")(scaled)

    assert not app.pools()[0].groups[0].signature.takes_context


@pytest.mark.parametrize(
    ("option", "value"),
    [("unary", "first"), ("priority", True), ("priority", 1.0), ("platform", 5), ("slo_ms", True), ("timeout_ms", -1)],
)
def test_an_option_has_its_own_type_and_range(option: str, value: Any) -> None:
    with pytest.raises(AppError, match=f"m: `{option}` must be"):
        App("a").model("m", **{option: value})(generator)


@pytest.mark.parametrize("priority", [1, 9])
def test_the_first_and_the_last_priority_are_priorities(priority: int) -> None:
    app = App("a")

    app.model("m", priority=priority, slo_ms=0)(plain)

    assert cards(app)[0].priority == priority
