"""Reads an inference call as a request for text, and makes the engine's job of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from corosrv.base.errors import InvalidTensor, Refused
from corosrv.contracts.jobs import Job, Text
from corosrv.contracts.jobs.infer import InferJob
from corosrv.dialects.generation.fields import Defaults, GenerationFields, job
from corosrv.dialects.generation.prompts import with_images
from corosrv.formats.bodies import check_text, convert, decode_unscanned
from corosrv.formats.tensors import Parameter, Tensor, TensorSpec
from corosrv.images.intake import ImageIntake

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


def text_request(call: InferJob, model: str, defaults: Defaults) -> TextRequest:
    """Checks a call's inputs and parameters, but for its images. Raises Refused, which names the parameter."""
    text = _text(call.request.inputs)
    members = dict(call.request.parameters)
    excludes_input = members.pop(_EXCLUDE_INPUT, True)
    if not isinstance(excludes_input, bool):
        raise Refused(f"{_EXCLUDE_INPUT} must be true or false", _EXCLUDE_INPUT)
    made = job(_fields(members), (Text(text),), defaults)
    # A stream says how many tokens its prompt has from the first answer on.
    made = replace(made, model=model, stream=call.stream, tells_progress=call.stream, terms=call.terms)
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
