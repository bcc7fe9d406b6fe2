"""Text completions, the way in: bodies to calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Job, ModelCard, MultimodalText, Pieces, Prompt, Text, Tokens, Vocabulary
from corosrv.dialects.generation import fields
from corosrv.dialects.generation import prompts as infill
from corosrv.dialects.generation.call import AnswerOptions, Call, Echo
from corosrv.dialects.generation.embeds import NUMBER_BYTES, EmbedsReader, refuse_with_rows
from corosrv.dialects.generation.forks import ForkableAnswer, make_forkable
from corosrv.dialects.generation.prompts import PromptField, prompts
from corosrv.dialects.generation.thoughts import with_budget
from corosrv.dialects.openai.completions.answers import TextAnswer
from corosrv.dialects.openai.events import native_form
from corosrv.dialects.openai.structured_fields import (
    MAX_CHOICES,
    FormFields,
    answer_format,
    check_fork,
    includes_usage,
    priority_of,
    served_tier,
    with_format,
)
from corosrv.images.intake import ImageIntake

MAX_PROMPTS = 64

UNSUPPORTED = fields.EVERYWHERE

_EMBEDS = (
    "Embedding rows in place of a prompt, where the server takes them: base64 of little-endian numbers, row by row. "
    "`GET /v1/models/{id}` tells how wide and how many they are"
)
_EMBEDS_SCHEMA = {
    "type": ["object", "null"],
    "properties": {
        "dtype": {"enum": list(NUMBER_BYTES)},
        "shape": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        "data": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["dtype", "shape", "data"],
    "additionalProperties": False,
}


class CompletionBody(FormFields, kw_only=True):
    prompt: PromptField | None = None
    prompt_embeds: Annotated[Any, Meta(description=_EMBEDS, extra_json_schema=_EMBEDS_SCHEMA)] = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None


decoder = fields.decoder(CompletionBody, UNSUPPORTED)


def call(
    body: CompletionBody,
    card: ModelCard,
    find_vocabulary: Callable[[], Vocabulary],
    images: ImageIntake | None = None,
    embeds: EmbedsReader | None = None,
    forked: ForkableAnswer | None = None,
) -> Call:
    """Checks a text completion; waits for its images. Raises Refused, which names the parameter.

    `embeds` reads the rows of a request; without it rows are refused. `forked`: the answer that `fork` names.
    """
    include_usage = includes_usage(body)
    vocabulary = find_vocabulary()
    point = None
    if body.fork is not None:
        check_fork(body.fork, body, _OF_PROMPT)
    if body.fork is not None and forked is not None:
        point = forked.point(body.fork, vocabulary)
    if point is None:
        checked_prompts = _prompts(body, vocabulary, images, embeds or EmbedsReader(False, lambda: card))
    else:
        checked_prompts = (Tokens(point.prompt),)
    job = _job(body, _with_suffix(body, checked_prompts, vocabulary), card)
    job = with_budget(job, body, card, vocabulary)
    if point is not None:
        job = point.branch(job)
    forkable = None
    if body.forkable:
        if job.n > (body.n or job.n):
            raise Refused("forkable: not with best_of, for only some of the answers are shown", "forkable")
        job, forkable = make_forkable(job, card, vocabulary, point)
    options = AnswerOptions.from_fields(
        body,
        n=(body.n or 1) if point is None else point.n,
        usage=include_usage,
        compute=bool(body.include_compute),
        service_tier="" if body.service_tier is None else served_tier(body),
        echoes=tuple(_echo(prompt, vocabulary) for prompt in checked_prompts) if body.echo else None,
        logprobs=body.logprobs is not None,
        probs=bool(body.n_probs),
        native_form=native_form(body, job, card, find_vocabulary) if body.verbose else None,
    )
    answer = TextAnswer(job, card, options)
    if forkable is not None:
        forkable.id = answer.id
    priority = body.priority if body.service_tier is None else priority_of(body)
    return Call(job, options.stream, answer, priority, forkable=forkable, card=card)


# Fields that make the prompt, or show it; which branches are the best is for their client to say.
_OF_PROMPT = ("prompt", "prompt_embeds", "suffix", "echo", "best_of")


def _prompts(
    body: CompletionBody, vocabulary: Vocabulary, images: ImageIntake | None, embeds: EmbedsReader
) -> tuple[Prompt, ...]:
    if body.prompt_embeds is not None:
        if embeds.is_enabled:
            refuse_with_rows(bool(body.echo), bool(body.suffix))
        return (Pieces((embeds.read(body.prompt_embeds, body.prompt is not None),)),)
    if body.prompt is None:
        raise Refused("prompt is required", "prompt", "missing_required_parameter")
    return prompts(body.prompt, "prompt", MAX_PROMPTS, vocabulary, images)


def _job(body: CompletionBody, checked_prompts: tuple[Prompt, ...], card: ModelCard) -> Job:
    n_tried = _n_tried(body)
    job = fields.job(
        body,
        checked_prompts,
        card.defaults,
        n=n_tried,
        least_tokens=0,
        n_probs=_n_probs(body, n_tried),
        post_sampling_probs=bool(body.post_sampling_probs),
        scores_prompt=body.logprobs is not None and bool(body.echo),
    )
    return with_format(job, answer_format(body), card)


def _n_probs(body: CompletionBody, n_tried: int) -> int:
    """Returns how many likely tokens are listed for each; -1 where the answer needs no tokens at all."""
    if body.post_sampling_probs and not body.n_probs:
        raise Refused("post_sampling_probs is only allowed with n_probs of at least 1", "post_sampling_probs")
    if body.n_probs:
        if body.logprobs is not None:
            raise Refused("n_probs and logprobs ask for the same in two forms: send one of them", "n_probs")
        return body.n_probs
    if body.logprobs is not None:
        return body.logprobs
    # Tokens and their likelihood tell which answers are the best.
    return 0 if n_tried > (body.n or 1) or (body.verbose and body.return_tokens) else -1


def _n_tried(body: CompletionBody) -> int:
    """Returns how many answers each prompt gets, of which the best are shown."""
    n = body.n or 1
    best_of = n if body.best_of is None else body.best_of
    if best_of < n:
        raise Refused(f"best_of must be at least n, which is {n}, not {best_of}", "best_of")
    if best_of > n and body.stream:
        raise Refused("best_of: which answers are the best is known at their end; not with stream: true", "best_of")
    return best_of


def _echo(prompt: Prompt, vocabulary: Vocabulary) -> Echo:
    if isinstance(prompt, MultimodalText):
        raise Refused("echo: a prompt with images is not repeated", "echo")
    spelled = vocabulary.spell(vocabulary.encode(prompt)).decode("utf-8", "replace")
    text = prompt.text if isinstance(prompt, Text) else spelled
    return Echo(text, len(text) - len(spelled))


def _with_suffix(
    body: CompletionBody, checked_prompts: tuple[Prompt, ...], vocabulary: Vocabulary
) -> tuple[Prompt, ...]:
    """Returns the prompts, or with a suffix an infill prompt for each. Raises Refused."""
    if not body.suffix:
        return checked_prompts
    if vocabulary.infill is None:
        raise NotSupported("suffix: this model has no tokens for infilling", "suffix")
    if body.echo and body.logprobs is not None:
        raise Refused("suffix: not together with echo and logprobs, for the prompt is another one then", "suffix")
    holes: list[Prompt] = []
    for prompt in checked_prompts:
        if not isinstance(prompt, Text):
            raise Refused("suffix: only together with prompts that are strings", "suffix")
        hole = infill.Hole(prompt.text, body.suffix)
        holes.append(infill.prompt(hole, vocabulary.infill, vocabulary, ("prompt", "suffix", "", "")))
    return tuple(holes)
