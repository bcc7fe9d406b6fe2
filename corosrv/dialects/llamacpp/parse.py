"""llama-server's completions, the way in: bodies to calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from corosrv.base.errors import NotOffered, Refused
from corosrv.contracts.jobs import Job, ModelCard, MultimodalText, Prompt, Tokens, Vocabulary
from corosrv.dialects.generation import fields
from corosrv.dialects.generation import prompts as infill
from corosrv.dialects.generation.call import AnswerOptions, Call
from corosrv.dialects.generation.native import NativeForm
from corosrv.dialects.generation.prompts import is_several, prompts
from corosrv.dialects.generation.thoughts import with_budget
from corosrv.dialects.llamacpp import schema
from corosrv.dialects.llamacpp.answers import NativeAnswer
from corosrv.formats.bodies import check_text
from corosrv.images.intake import ImageIntake

_INFILL_PARAMS = ("input_prefix", "input_suffix", "prompt", "input_extra")


def completion(
    body: schema.NativeCompletionBody,
    card: ModelCard,
    vocabulary: Vocabulary,
    images: ImageIntake | None = None,
) -> Call:
    """Checks a completion; waits for its images. Raises Refused, which names the parameter."""
    inputs = prompts(body.prompt, "prompt", schema.MAX_PROMPTS, vocabulary, images)
    return _call(body, inputs, is_several(body.prompt), card, vocabulary)


def filling(body: schema.InfillBody, card: ModelCard, vocabulary: Vocabulary) -> Call:
    """Checks an infill. Raises NotOffered when the model has no tokens for it, and Refused."""
    if vocabulary.infill is None:
        raise NotOffered("this model has no tokens for infilling")
    extra_files = tuple((file.filename, file.text) for file in body.input_extra or ())
    hole = infill.Hole(body.input_prefix, body.input_suffix, body.prompt or "", extra_files)
    prompt = infill.prompt(hole, vocabulary.infill, vocabulary, _INFILL_PARAMS)
    return _call(body, (prompt,), False, card, vocabulary)


def _call(
    body: schema.NativeFields,
    inputs: Sequence[Prompt],
    is_list: bool,
    card: ModelCard,
    vocabulary: Vocabulary,
) -> Call:
    # Read here, because the answer shows what became of them.
    read = tuple(_read(prompt, i, len(inputs), vocabulary) for i, prompt in enumerate(inputs))
    job = with_budget(_job(body, read, card), body, card, vocabulary)
    form = NativeForm.for_job(
        job, card, vocabulary, bool(body.stream), bool(body.return_tokens), timings=bool(body.timings_per_token)
    )
    options = AnswerOptions.from_fields(
        body,
        native_form=replace(form, n_indent=body.n_indent or 0),
        is_list=is_list or job.n > 1,
        members=tuple(check_text(name, "response_fields") for name in body.response_fields or ()),
    )
    return Call(job, options.stream, NativeAnswer(options), body.priority, card=card)


def _read(prompt: Prompt, number: int, n_prompts: int, vocabulary: Vocabulary) -> Prompt:
    """Returns a prompt as its tokens; what those of an image are is known only when it is encoded."""
    if isinstance(prompt, MultimodalText):
        return prompt
    return Tokens(tuple(vocabulary.encode(prompt, number, n_prompts)))


def _job(body: schema.NativeFields, inputs: tuple[Prompt, ...], card: ModelCard) -> Job:
    if body.n is not None and body.n_cmpl is not None and body.n != body.n_cmpl:
        raise Refused("n and n_cmpl say different things", "n_cmpl")
    n_probs = body.n_probs or 0
    post_sampling = bool(body.post_sampling_probs)
    if post_sampling and not n_probs:
        raise Refused("post_sampling_probs is only allowed with n_probs of at least 1", "post_sampling_probs")
    n = body.n or body.n_cmpl or 1
    if isinstance(body.logit_bias, dict):
        body.logit_bias = [(_token_or_text(key), bias) for key, bias in body.logit_bias.items()]
    has_tokens = bool(n_probs or body.stream or body.return_tokens)
    job = fields.job(
        body,
        inputs,
        card.defaults,
        n=n,
        least_tokens=0,
        n_probs=n_probs if has_tokens else -1,
        post_sampling_probs=post_sampling,
    )
    return fields.with_schema(job, body.json_schema, card)


def _token_or_text(key: str) -> int | str:
    """Returns the key of a bias: llama-server's may name texts in an object, too."""
    return int(key) if key.isdecimal() and key.isascii() else key
