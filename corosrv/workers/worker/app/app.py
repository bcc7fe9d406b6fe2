"""Defines applications, with which authors register their handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from corosrv.base.errors import AppError
from corosrv.contracts.jobs.infer import HandlerCard
from corosrv.contracts.jobs.terms import DEFAULT_PRIORITY
from corosrv.formats.tensors import TensorSpec
from corosrv.workers.worker.app import options
from corosrv.workers.worker.app.options import OPTION_NAMES, HandlerOptions
from corosrv.workers.worker.app.pools import DEFAULT_POOL, BaseWorker, HandlerGroup, Pool, read_signature, stop_method

if TYPE_CHECKING:
    from corosrv.workers.worker.app.messages import ModelInferRequest, ModelInferResponse

AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Any])
AnyWorker = TypeVar("AnyWorker", bound=type[BaseWorker])


class App:
    """Holds the handlers that its decorators register. Every mistake is an AppError when the module is imported."""

    def __init__(self, name: str) -> None:
        options.check_name("App", name)
        self.name = name
        self._functions = Pool(DEFAULT_POOL)
        self._classes: dict[str, Pool] = {}
        self._test_run: Any = None  # made by the first test_call

    def model(
        self,
        name: str,
        *,
        version: str | None = None,
        inputs: Sequence[TensorSpec] = (),
        outputs: Sequence[TensorSpec] = (),
        platform: str = "corosrv-python",
        concurrency: int = 1,
        max_queue: int = 64,
        slo_ms: float = 60_000.0,
        timeout_ms: float | None = None,
        idempotent: bool = False,
        batch: Mapping[str, float] | None = None,
        unary: str | None = None,
        default: bool = False,
        priority: int = DEFAULT_PRIORITY,
        admission: str | None = None,
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Registers a function as a model: `(request)`, `(request, context)` or `(request, context, stream)`.

        Or one whose types say what it takes and gives, as `(a: int, b: list[float]) -> float`; see the guide.

        `inputs`, `outputs`: what it takes and gives; empty: anything. `concurrency`: how many calls run at once in one
        worker process. `max_queue`: how many may wait. `slo_ms`: how soon a call should be answered. `timeout_ms`: how
        long one may take. `idempotent`: a call whose worker was lost may run again. `batch`: `{"max_size": n,
        "max_delay_ms": t}`; the function gets a list of requests (and of contexts), and returns a list as long, in
        which an exception fails its own request only. `unary`: what a handler that streams does with a call that wants
        one answer: `join` its texts, the `last` answer, or `refuse`. `default`: the version that calls without one get.
        `priority`: among capabilities that match alike, from 1 to 9. `admission`: by default, or with `predict`,
        a call that can hardly end before its deadline is refused when it arrives, and not started; `queue` starts it.
        """
        handler_options = HandlerOptions(
            version=version,
            inputs=inputs,
            outputs=outputs,
            platform=platform,
            concurrency=concurrency,
            max_queue=max_queue,
            slo_ms=slo_ms,
            timeout_ms=timeout_ms,
            idempotent=idempotent,
            batch=batch,
            unary=unary,
            default=default,
            priority=priority,
            admission=admission,
        )

        def register(function: AnyHandler) -> AnyHandler:
            group = self._group_of(function)
            options.check_name(f"{group.title}: @app.model", name)
            self._add(group, handler_options.card(name, group.signature))
            return function

        return register

    def capability(self, **attributes: Any) -> Callable[[AnyHandler], AnyHandler]:
        """Registers a function as a capability, by its attributes: strings, numbers and booleans.

        The names of the options of `model` are options here, too, and no attributes.
        """
        handler_options, attributes = _split(attributes)

        def register(function: AnyHandler) -> AnyHandler:
            group = self._group_of(function)
            capability = options.check_capability(group.title, attributes)
            self._add(group, handler_options.card(_name_of(function), group.signature, capability))
            return function

        return register

    def worker(
        self,
        *,
        models: Sequence[str] = (),
        capabilities: Sequence[Mapping[str, Any]] = (),
        gpus: float = 0,
        memory_mb: float = 0,
        min: int = 1,
        max: int = 1,
        cold_start_ms: float | None = None,
        priority: int = DEFAULT_PRIORITY,
        **handler_options: Any,
    ) -> Callable[[AnyWorker], AnyWorker]:
        """Registers a worker class, whose `handle` answers all these models and capabilities in a pool of its own.

        `gpus`, `memory_mb`: what each process takes of the machine. `min`, `max`: the number of processes.
        `cold_start_ms`: how long a start takes; measured where it is not said. The options of `model` may follow.
        """

        def register(worker_class: AnyWorker) -> AnyWorker:
            title = _check_class(worker_class)
            attributes, rest = _split({"priority": priority, **handler_options})
            if rest:
                raise AppError(f"{title}: @app.worker has no option {sorted(rest)[0]!r}")
            method = f"{title}.handle"
            group = HandlerGroup(
                method, worker_class.handle, read_signature(worker_class.handle, method, is_method=True)
            )
            pool = Pool(title, worker_class, min, max, gpus, memory_mb, cold_start_ms, priority, [group])
            _check_pool(pool)
            self._add_class(pool, group, attributes, models, capabilities)
            return worker_class

        return register

    def pools(self) -> list[Pool]:
        """Returns the pools that have handlers, `default` first."""
        return [pool for pool in (self._functions, *self._classes.values()) if pool.groups]

    def test_call(
        self,
        name: str,
        request: ModelInferRequest | Sequence[ModelInferRequest],
        *,
        version: str = "",
        timeout_ms: float | None = None,
        cancel_after_ms: float | None = None,
    ) -> ModelInferResponse | list[ModelInferResponse] | list[ModelInferResponse | BaseException]:
        """Runs a handler in this process, for tests; `name`: of a model, or of a capability's function.

        Returns the answer, or the list of those of a handler that streams; for a list of requests to a handler of
        batches, a list with the answer or the error of each. Raises what the handler raises, InvalidTensor for an input
        that is not as declared, and OutputFailed or HandlerFailed for a wrong answer.

        A worker class is made and started at its first call, and stays for later ones, as stored objects do.
        `context.call` runs the other handlers of the application to their ends, with the errors that a server makes
        of theirs. `timeout_ms`: the time of the call, after which it raises DeadlineExceeded; the handler's own one
        holds as well. `cancel_after_ms`: when the client leaves, so that the call raises Cancelled; 0: before it
        begins. A handler that does not heed its context ends by itself.
        """
        from corosrv.workers.worker.app.testing import LocalRun  # no worker needs it

        if self._test_run is None:
            self._test_run = LocalRun(self.pools())
        answer: ModelInferResponse | list[Any] = self._test_run.call(
            name, request, version, timeout_ms, cancel_after_ms
        )
        return answer

    def _group_of(self, function: Callable[..., Any]) -> HandlerGroup:
        """Returns the group of a function, a new one for a new function."""
        for group in self._functions.groups:
            if group.function is function:
                return group
        title = _title_of(function)
        return HandlerGroup(title, function, read_signature(function, title))

    def _add(self, group: HandlerGroup, card: HandlerCard) -> None:
        self._check_new(group.title, card)
        group.add(card)
        if group not in self._functions.groups:
            self._functions.groups.append(group)

    def _add_class(
        self,
        pool: Pool,
        group: HandlerGroup,
        handler_options: HandlerOptions,
        models: Sequence[str],
        capabilities: Sequence[Mapping[str, Any]],
    ) -> None:
        signature = group.signature
        if isinstance(models, str) or isinstance(capabilities, Mapping) or not (models or capabilities):
            raise AppError(f"{pool.name}: @app.worker needs models=['name'], capabilities=[{{'type': 'name'}}] or both")
        for model in models:
            options.check_name(f"{pool.name}: `models`", model)
        cards = [handler_options.card(model, signature) for model in models]
        for attributes in capabilities:
            cards.append(handler_options.card(pool.name, signature, options.check_capability(pool.name, attributes)))
        if pool.name == DEFAULT_POOL or pool.name in self._classes:
            raise AppError(f"{pool.name}: there is a pool of this name already: give the class another name")
        for card in cards:
            self._check_new(group.title, card, group)
            group.add(card)
        self._classes[pool.name] = pool

    def _check_new(self, title: str, card: HandlerCard, unlisted: HandlerGroup | None = None) -> None:
        """Raises AppError if something else is offered by the same name and version, or as the same capability."""
        groups = [group for pool in self.pools() for group in pool.groups]
        for group in [*groups, *([unlisted] if unlisted else [])]:
            for other in group.cards:
                if card.capability is None and other.capability is None:
                    is_same = (card.name, card.version) == (other.name, other.version)
                    what = f"the model {card.name!r}" + (f" version {card.version!r}" if card.version else "")
                else:
                    is_same = options.same_capability(card.capability or {}, other.capability or {})
                    what = f"the capability {options.describe_capability(card.capability or {})}"
                if is_same:
                    raise AppError(f"{title}: {what} is registered already, by {group.title}: change one of them")
                if card.is_default and other.is_default and card.name == other.name:
                    raise AppError(f"{title}: version {other.version!r} of {card.name!r} is the default already")


def _split(attributes: Mapping[str, Any]) -> tuple[HandlerOptions, dict[str, Any]]:
    """Splits keyword arguments into options of handlers, and others."""
    handler_options = HandlerOptions(**{name: value for name, value in attributes.items() if name in OPTION_NAMES})
    return handler_options, {name: value for name, value in attributes.items() if name not in OPTION_NAMES}


def _title_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise AppError(f"{_title_of(function)} has no name: write it with `def`")
    return name


def _check_class(worker_class: Any) -> str:
    """Returns the name of a worker class. Raises AppError for anything else."""
    if not isinstance(worker_class, type) or not issubclass(worker_class, BaseWorker):
        raise AppError(f"{_title_of(worker_class)}: @app.worker registers classes that derive from Worker")
    title = worker_class.__name__
    if worker_class.handle is BaseWorker.handle:
        raise AppError(f"{title} has no method handle(self, request, context)")
    stop_method(worker_class)
    return title


def _check_pool(pool: Pool) -> None:
    for name, number in (("min", pool.min_workers), ("max", pool.max_workers)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise AppError(f"{pool.name}: `{name}` must be a number of processes, not {number!r:.80}")
    assert pool.min_workers is not None, "a class has it"
    assert pool.max_workers is not None, "a class has it"
    if pool.max_workers < max(1, pool.min_workers):
        raise AppError(f"{pool.name}: `max` must be at least 1 and `min`, not {pool.max_workers}")
    for name, amount in (("gpus", pool.gpus), ("memory_mb", pool.memory_mb), ("cold_start_ms", pool.cold_start_ms)):
        if amount is not None and (isinstance(amount, bool) or not isinstance(amount, (int, float)) or amount < 0):
            raise AppError(f"{pool.name}: `{name}` must be a number, not {amount!r:.80}")
