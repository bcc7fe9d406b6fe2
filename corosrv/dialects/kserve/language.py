"""Offers language models as models of the v2 protocol: makes jobs for their worker of inference calls."""

from __future__ import annotations

import re
import threading
from time import monotonic

from corosrv.base.errors import NotFound, NotSupported, Unavailable
from corosrv.contracts.jobs import Chunk, Job, ModelCard, Reader, Worker
from corosrv.contracts.jobs.infer import HandlerCard, InferJob, InferReader, ModelStanding, ModelTarget, Target
from corosrv.contracts.settings import ImageSettings
from corosrv.dialects.generation.fields import Defaults
from corosrv.dialects.generation.job_log import JobRecord
from corosrv.dialects.kserve.language_reader import OUTPUTS, LanguageReader
from corosrv.dialects.kserve.language_request import IMAGE_INPUT, TEXT_INPUT, TextRequest, text_request
from corosrv.images.reader import CAPABILITY, ImageReader
from corosrv.workers.dispatch.answers import (
    AnswerKeeper,
    CallAnswer,
    CallClaim,
    CallRecords,
    check_answerable,
    digest_of,
)
from corosrv.workers.dispatch.reader import HandlerReader

_PLATFORM = "corosrv-llm"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NO_PART_OF_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_VERSION = "1"  # by which the index lists what has no versions

# By ModelCard.status. A model that is not loaded is loaded for whoever calls it.
_STATES = {"loaded": "READY", "unloaded": "READY", "loading": "LOADING"}


class LanguageModels:
    """Is an InferWorker in front of a worker that generates text: see corosrv.contracts.jobs.infer for the contract.

    Prompts are texts as they stand, as in text completions; each name of a model is a model of its own here.
    """

    def __init__(
        self,
        worker: Worker,
        defaults: Defaults,
        logs_json: bool = False,
        records: CallRecords | None = None,
        images: ImageReader | None = None,
    ) -> None:
        """`defaults`: for what a call does not say; `logs_json`: the form of each job's line of log.

        `records`: of calls with idempotency keys. `images`: reads those of calls.
        """
        self._worker = worker
        self._defaults = defaults
        self._logs_json = logs_json
        self._images = images or ImageReader(ImageSettings())
        self._records = CallRecords() if records is None else records
        self._records_lock = threading.Lock()

    def standings(self) -> tuple[ModelStanding, ...]:
        return tuple(
            ModelStanding(_handler_card(name, model), _STATES.get(model.status, "UNAVAILABLE"), _reason(model))
            for model in self._models()
            if _generates(model)
            for name in _names(model)
        )

    def _models(self) -> tuple[ModelCard, ...]:
        """Returns the models that have a name yet: not an only one that was never loaded."""
        models = self._worker.models()
        if len(models) == 1 and models[0].status != "loaded":
            try:
                self._worker.check()
            except Unavailable:
                return ()
        return models

    def find(self, target: Target) -> HandlerCard:
        return self._find(target)[0]

    def submit(self, job: InferJob) -> InferReader:
        """Checks a call, which its reader then queues: that may wait while the model is loaded, and ends in an InferEnd
        where it fails.

        Raises what `find` raises, and Refused, which names the parameter; for a call with an idempotency key KeyReused,
        and Conflict while the first one runs.
        """
        card, model = self._find(job.target)
        check_answerable(card, job.request, job.stream)
        request = text_request(job, model.id, self._defaults)
        keeper = None
        if job.terms.idempotency_key and self._records.is_on:
            begun = self._begin_keyed(job)
            if isinstance(begun, CallAnswer):
                return HandlerReader.of_answer(begun)
            keeper = AnswerKeeper(begun, card, self._records_lock)
        return LanguageReader(job, card, request.prefix, lambda: self._begin(request), keeper)

    def _begin_keyed(self, job: InferJob) -> CallAnswer | CallClaim:
        """Returns the answer that is known already, or the claim of a call that has to run."""
        terms = job.terms
        with self._records_lock:
            return self._records.begin(terms.caller, terms.idempotency_key, digest_of(job), monotonic())

    def _begin(self, request: TextRequest) -> tuple[Reader[Chunk], JobRecord]:
        model = self._worker.card(request.job.model)
        job = self._with_images(request, model)
        record = JobRecord(job.terms.request_id, model.id, job.n_tasks, self._logs_json)
        return self._worker.submit(job), record

    def _with_images(self, request: TextRequest, model: ModelCard) -> Job:
        if not request.media:
            return request.job
        images = self._images.intake(model)
        if images is None:
            name = IMAGE_INPUT.name
            raise NotSupported(f"{name}: this model reads text only", name, "unsupported_content")
        return request.read_images(images)

    def _find(self, target: Target) -> tuple[HandlerCard, ModelCard]:
        if not isinstance(target, ModelTarget):
            raise NotFound("no language model is offered by capability", "capability", "no_match")
        models = self._models()
        if not models:
            self._worker.check()  # a model that was never loaded has no name yet
        for model in models:
            if target.name in _names(model) and _generates(model):
                if target.version not in ("", _VERSION):
                    words = f"the model '{target.name}' has no version '{target.version[:40]}'; it has no versions"
                    raise NotFound(words, "model_version", "model_not_found")
                return _handler_card(target.name, model), model
        raise NotFound(f"the model '{target.name[:120]}' does not exist here", "model_name", "model_not_found")


def _generates(model: ModelCard) -> bool:
    """Tells whether a model writes text, as far as is known before it is loaded."""
    return model.status != "loaded" or "completion" in model.capabilities


def _names(model: ModelCard) -> tuple[str, ...]:
    """Returns the names of a model that the v2 protocol allows, at least one: made of its id where none is."""
    names = dict.fromkeys(name for name in (model.id, *model.aliases) if _NAME.fullmatch(name))
    return tuple(names) or (_NO_PART_OF_NAMES.sub("-", model.id).strip("-._")[:128] or "model",)


def _handler_card(name: str, model: ModelCard) -> HandlerCard:
    return HandlerCard(
        name,
        platform=_PLATFORM,
        inputs=[TEXT_INPUT, IMAGE_INPUT] if CAPABILITY in model.capabilities else [TEXT_INPUT],
        outputs=OUTPUTS,
        is_stream=True,
        unary="join",
        concurrency=max(model.slots, 1),
    )


def _reason(model: ModelCard) -> str:
    return {"unloaded": "loaded at the first call", "loading": "loading", "failed": "could not be loaded"}.get(
        model.status, ""
    )
