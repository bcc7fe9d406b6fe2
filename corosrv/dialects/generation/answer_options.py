"""Options of an answer: what it shows besides its text, as its request asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.dialects.generation.fields import GenerationFields
from corosrv.dialects.generation.native import NativeForm


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that stands in front of its answers."""

    text: str
    offset: int = 0  # where its first token begins in the text: before it, when the model was given one in front


class AnswerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one answer; each dialect fills in those that it offers."""

    stream: bool = False
    usage: bool = False  # at the end of a stream
    token_timings: bool = False  # with every token of a stream
    prompt_progress: bool = False  # at the beginning of a stream, while the prompt is read
    logprobs: bool = False  # in the dialect's own form
    probs: bool = False  # the same in llama-server's form
    n: int = 1  # answers to each prompt: the best of those that the job tries
    echoes: tuple[Echo, ...] | None = None  # of each prompt
    native_form: NativeForm | None = None  # the answer in llama-server's form, alone or next to the dialect's
    is_list: bool = False  # the answer is a list, however many there are
    members: tuple[str, ...] = ()  # that are picked from the answer; none: all of them

    @classmethod
    def from_fields(cls, fields: GenerationFields, **options: Any) -> AnswerOptions:
        """Makes the options that all dialects read from the same fields, and those given."""
        stream = bool(fields.stream)
        return cls(
            stream=stream,
            token_timings=stream and bool(fields.timings_per_token),
            prompt_progress=stream and bool(fields.return_progress),
            **options,
        )
