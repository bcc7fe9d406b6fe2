"""llama-server's completions, the way in: the bodies that its endpoints take, and calls made of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from corosrv.base.errors import NotOffered, Refused
from corosrv.contracts.jobs import Job, ModelCard, MultimodalText, Prompt, Tokens, Vocabulary
from corosrv.dialects.generation import fields
from corosrv.dialects.generation import prompts as infill
from corosrv.dialects.generation.call import AnswerOptions, Call
from corosrv.dialects.generation.fields import Lora, ModelName
from corosrv.dialects.generation.native import NativeForm, with_triggers
from corosrv.dialects.generation.prompts import PromptField, is_several, prompts
from corosrv.dialects.generation.thoughts import TaggedThoughtFields, with_budget
from corosrv.dialects.llamacpp.answers import IndentReader, NativeAnswer
from corosrv.formats.bodies import check_text
from corosrv.images.intake import ImageIntake

MAX_PROMPTS = 64
MAX_CHOICES = 128
MAX_PROBS = 100
MAX_EXTRA = 256
MAX_TOKENS = 524_288
MAX_TEXTS = 8192  # in one list to be tokenised

UNSUPPORTED: fields.Neutral = {
    **{name: neutral for name, neutral in fields.EVERYWHERE.items() if name != "n_indent"},
    **fields.NO_FORKS,
    "n_cache_reuse": (0,),
}


class NativeFields(TaggedThoughtFields, kw_only=True):
    """The fields that `/completion` and `/infill` share."""

    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    n_cmpl: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    json_schema: dict[str, Any] | bool | None = None
    n_probs: Annotated[int, Meta(ge=0, le=MAX_PROBS)] | None = None
    logprobs: (
        Annotated[int, Meta(ge=0, le=MAX_PROBS, description="the same as n_probs, which goes before it")] | None
    ) = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    n_indent: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    response_fields: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=64)] | None = None


class NativeCompletionBody(NativeFields, kw_only=True):
    prompt: PromptField


class ExtraFile(msgspec.Struct):
    """Another file of the repository that is written in."""

    text: str
    filename: str = "tmp"


class InfillBody(NativeFields, kw_only=True):
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Meta(max_length=MAX_EXTRA)] | None = None
    prompt: str | None = None


class TokenizeBody(msgspec.Struct):
    content: str | Annotated[list[str | int], Meta(max_length=MAX_TOKENS)]  # a list is texts and token ids in a row
    model: ModelName | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct):
    tokens: Annotated[list[int], Meta(max_length=MAX_TOKENS)]
    model: ModelName | None = None


class SlotFileBody(msgspec.Struct):
    filename: str


completion_decoder = fields.decoder(NativeCompletionBody, UNSUPPORTED)
infill_decoder = fields.decoder(InfillBody, UNSUPPORTED)
tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
slot_file_decoder = msgspec.json.Decoder(SlotFileBody)
adapters_decoder = msgspec.json.Decoder(Annotated[list[Lora], Meta(max_length=64)])
props_decoder = msgspec.json.Decoder(dict[str, Any])


_INFILL_PARAMS = ("input_prefix", "input_suffix", "prompt", "input_extra")


def completion(
    body: NativeCompletionBody, card: ModelCard, vocabulary: Vocabulary, images: ImageIntake | None = None
) -> Call:
    """Checks a completion; waits for its images. Raises Refused, which names the parameter."""
    inputs = prompts(body.prompt, "prompt", MAX_PROMPTS, vocabulary, images)
    return _call(body, inputs, is_several(body.prompt), card, vocabulary)


def filling(body: InfillBody, card: ModelCard, vocabulary: Vocabulary) -> Call:
    """Checks an infill. Raises NotOffered when the model has no tokens for it, and Refused."""
    if vocabulary.infill is None:
        raise NotOffered("this model has no tokens for infilling")
    extra_files = tuple((file.filename, file.text) for file in body.input_extra or ())
    hole = infill.Hole(body.input_prefix, body.input_suffix, body.prompt or "", extra_files)
    prompt = infill.prompt(hole, vocabulary.infill, vocabulary, _INFILL_PARAMS)
    return _call(body, (prompt,), False, card, vocabulary)


def _call(body: NativeFields, inputs: Sequence[Prompt], is_list: bool, card: ModelCard, vocabulary: Vocabulary) -> Call:
    # Read here, because the answer shows what became of them.
    read = tuple(_read(prompt, i, len(inputs), vocabulary) for i, prompt in enumerate(inputs))
    job = with_budget(_job(body, read, card, vocabulary), body, card, vocabulary)
    form = NativeForm.for_job(
        job, card, vocabulary, bool(body.stream), bool(body.return_tokens), timings=bool(body.timings_per_token)
    )
    options = AnswerOptions.from_fields(
        body,
        native_form=form,
        is_list=is_list or job.n > 1,
        members=tuple(check_text(name, "response_fields") for name in body.response_fields or ()),
    )
    clipped = partial(IndentReader, n_tasks=job.n_tasks, least=body.n_indent) if body.n_indent else None
    pings = body.sse_ping_interval
    return Call(job, options.stream, NativeAnswer(options), body.priority, card=card, read=clipped, ping_interval=pings)


def _read(prompt: Prompt, number: int, n_prompts: int, vocabulary: Vocabulary) -> Prompt:
    """Returns a prompt as its tokens; what those of an image are is known only when it is encoded."""
    if isinstance(prompt, MultimodalText):
        return prompt
    return Tokens(tuple(vocabulary.encode(prompt, number, n_prompts)))


def _job(body: NativeFields, inputs: tuple[Prompt, ...], card: ModelCard, vocabulary: Vocabulary) -> Job:
    if body.n is not None and body.n_cmpl is not None and body.n != body.n_cmpl:
        raise Refused("n and n_cmpl say different things", "n_cmpl")
    n_probs = (body.logprobs if body.n_probs is None else body.n_probs) or 0
    post_sampling = bool(body.post_sampling_probs)
    if post_sampling and not n_probs:
        raise Refused("post_sampling_probs is only allowed with n_probs of at least 1", "post_sampling_probs")
    n = body.n or body.n_cmpl or 1
    if isinstance(body.logit_bias, dict):
        body.logit_bias = [(_token_or_text(key), bias) for key, bias in body.logit_bias.items()]
    has_tokens = bool(n_probs or body.stream or body.return_tokens or body.n_indent)
    job = fields.job(
        body,
        inputs,
        card.defaults,
        n=n,
        least_tokens=0,
        n_probs=n_probs if has_tokens else -1,
        post_sampling_probs=post_sampling,
    )
    return with_triggers(fields.with_schema(job, body.json_schema, card), body, lambda: vocabulary)


def _token_or_text(key: str) -> int | str:
    """Returns the key of a bias: llama-server's may name texts in an object, too."""
    return int(key) if key.isdecimal() and key.isascii() else key
