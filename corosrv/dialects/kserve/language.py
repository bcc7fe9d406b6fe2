"""Offers language models as models of the v2 protocol: an inference call becomes a request for text, and a job."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import msgspec

from corosrv.base.errors import InvalidTensor, NotFound, NotSupported, Refused, Unavailable
from corosrv.contracts.jobs import Chunk, Job, ModelCard, Reader, Text, Worker
from corosrv.contracts.jobs.infer import HandlerCard, InferJob, InferReader, ModelStanding, ModelTarget, Target
from corosrv.contracts.settings import ImageSettings
from corosrv.dialects.generation.fields import GenerationFields, job
from corosrv.dialects.generation.job_usage import JobRecord, submit
from corosrv.dialects.generation.prompts import with_images
from corosrv.dialects.kserve.language_reader import OUTPUTS, LanguageReader
from corosrv.formats.bodies import check_text, convert, decode_unscanned
from corosrv.formats.tensors import Parameter, Tensor, TensorSpec
from corosrv.images.intake import ImageIntake
from corosrv.images.reader import CAPABILITY, ImageReader
from corosrv.workers.dispatch.answers import (
    AnswerKeeper,
    CallAnswer,
    CallClaim,
    CallRecords,
    HandlerReader,
    check_answerable,
    digest_of,
)

TEXT_INPUT = TensorSpec("text_input", "BYTES", (1,))
# Images as base64, as Triton's backend for vLLM has them: one for each marker in the text.
IMAGE_INPUT = TensorSpec("image", "BYTES", (-1,), optional=True)

# Those of GenerationFields that a scalar says.
_OFFERED = frozenset(
    ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "repeat_penalty", "presence_penalty",
     "frequency_penalty", "ignore_eos")
)  # fmt: skip
_EXCLUDE_INPUT = "exclude_input_in_output"
_STOP_STRINGS = "stop_strings"  # the strings of a `stop` that is an array, as JSON: parameters are scalars
_OF_SEQUENCES = frozenset(("sequence_id", "sequence_start", "sequence_end"))  # for handlers that keep a state

_STRINGS = msgspec.json.Decoder(list[str])


@dataclass(frozen=True, slots=True)
class TextRequest:
    """Holds a request for text. `prefix`: what its answer begins with, before what is generated."""

    job: Job
    prefix: str
    text: str
    media: tuple[str, ...] = ()  # images as base64

    def read_images(self, images: ImageIntake) -> Job:
        """Returns the job with the images in its prompt. Waits for them. Raises Refused."""
        return replace(self.job, prompts=(with_images(self.text, self.media, images, IMAGE_INPUT.name),))


def text_request(call: InferJob, model: ModelCard) -> TextRequest:
    """Checks a call's inputs and parameters, but for its images. Raises Refused, which names the parameter."""
    text = _text(call.request.inputs)
    members = dict(call.request.parameters)
    excludes_input = members.pop(_EXCLUDE_INPUT, True)
    if not isinstance(excludes_input, bool):
        raise Refused(f"{_EXCLUDE_INPUT} must be true or false", _EXCLUDE_INPUT)
    made = job(_fields(members), (Text(text),), model.defaults)
    # A stream says how many tokens its prompt has from the first answer on.
    made = replace(made, model=model.id, stream=call.stream, tells_progress=call.stream, terms=call.terms)
    return TextRequest(made, "" if excludes_input else text, text, _media(call.request.inputs))


def _text(inputs: tuple[Tensor, ...]) -> str:
    for tensor in inputs:
        if tensor.name == TEXT_INPUT.name and tensor.datatype == "BYTES" and tensor.n_elements == 1:
            try:
                return check_text(tensor.data[0].decode(), TEXT_INPUT.name)
            except UnicodeDecodeError:
                raise InvalidTensor(TEXT_INPUT.name, "is not UTF-8") from None
    raise InvalidTensor(TEXT_INPUT.name, "must be there, with one element of BYTES")


def _media(inputs: tuple[Tensor, ...]) -> tuple[str, ...]:
    tensor = next((tensor for tensor in inputs if tensor.name == IMAGE_INPUT.name), None)
    if tensor is None:
        return ()
    if tensor.datatype != "BYTES":
        raise InvalidTensor(tensor.name, "must have elements of BYTES, each an image as base64")
    try:
        return tuple(element.decode("ascii") for element in tensor.data)
    except UnicodeDecodeError:
        raise InvalidTensor(tensor.name, "is not base64") from None


def _fields(members: Mapping[str, Parameter]) -> GenerationFields:
    chosen: dict[str, Any] = {}
    for name, value in members.items():
        if name in _OFFERED:
            chosen[name] = value
        elif name == _STOP_STRINGS:
            chosen["stop"] = _strings(value)
        elif name not in _OF_SEQUENCES:
            offered = ", ".join(sorted({*_OFFERED, _EXCLUDE_INPUT}))
            raise Refused(f"{name[:120]} is no parameter of language models, which take {offered}", name[:120])
    return convert(chosen, GenerationFields, "")


def _strings(value: Parameter) -> list[str]:
    if not isinstance(value, str):
        raise Refused("stop must be a string, or an array of strings", "stop")
    return decode_unscanned(value.encode(), _STRINGS)


_PLATFORM = "corosrv-llm"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NO_PART_OF_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_VERSION = "1"  # by which the index lists what has no versions

# By ModelCard.status. A model that is not loaded is loaded for whoever calls it.
_STATES = {"loaded": "READY", "unloaded": "READY", "loading": "LOADING"}


class LanguageModels:
    """An InferWorker in front of a worker that generates text: see corosrv.contracts.jobs.infer for the contract.

    Prompts are texts as they stand, as in text completions; each name of a model is a model of its own here.
    """

    def __init__(
        self,
        worker: Worker,
        logs_json: bool = False,
        records: CallRecords | None = None,
        images: ImageReader | None = None,
    ) -> None:
        """`logs_json`: the form of each job's line of log; `records`: of calls with idempotency keys.

        `images`: reads those of calls.
        """
        self._worker = worker
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
        if sum(not model.parent for model in models) == 1 and models[0].status != "loaded":
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
        request = text_request(job, model)
        keeper = None
        if job.terms.idempotency_key and self._records.is_on:
            begun = self._begin_keyed(job)
            if isinstance(begun, CallAnswer):
                return HandlerReader.of_answer(begun)
            keeper = AnswerKeeper(begun, card, self._records_lock)
        return LanguageReader(job, card, request.prefix, lambda: self._begin(job, request, model), keeper)

    def _begin_keyed(self, job: InferJob) -> CallAnswer | CallClaim:
        """Returns the answer that is known already, or the claim of a call that has to run."""
        terms = job.terms
        with self._records_lock:
            return self._records.begin(terms.caller, terms.idempotency_key, digest_of(job), monotonic())

    def _begin(self, call: InferJob, request: TextRequest, listed_card: ModelCard) -> tuple[Reader[Chunk], JobRecord]:
        model = self._worker.card(request.job.model)
        if model.defaults != listed_card.defaults:  # it was not loaded when the call was checked
            request = text_request(call, model)
        return submit(self._worker, self._with_images(request, model), self._logs_json)

    def _with_images(self, request: TextRequest, model: ModelCard) -> Job:
        if not request.media:
            return request.job
        if CAPABILITY not in model.capabilities:
            name = IMAGE_INPUT.name
            raise NotSupported(f"{name}: this model reads text only", name, "unsupported_content")
        return request.read_images(self._images.intake())

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
