"""Text completions: bodies to calls, and chunks to answers, whose log probabilities have a shape older than chats'."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

from msgspec import Meta

from corosrv.base.errors import CorosrvError, NotSupported, Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import (
    Chunk,
    Job,
    ModelCard,
    MultimodalText,
    Pieces,
    Prompt,
    Text,
    TokenInfo,
    Tokens,
    Vocabulary,
)
from corosrv.dialects.generation import fields, native
from corosrv.dialects.generation import prompts as infill
from corosrv.dialects.generation.call import AnswerOptions, Call, Echo, split_tokens
from corosrv.dialects.generation.forks import ForkableAnswer, make_forkable
from corosrv.dialects.generation.job_usage import Tally
from corosrv.dialects.generation.prompts import NUMBER_BYTES, EmbedsReader, PromptField, prompts, refuse_with_rows
from corosrv.dialects.generation.thoughts import with_budget
from corosrv.dialects.openai import events
from corosrv.dialects.openai.answer_types import Finish, TextChoice, TextCompletion, TextLogprobs
from corosrv.dialects.openai.events import LlamaExtras, native_form
from corosrv.dialects.openai.structured_fields import (
    MAX_CHOICES,
    FormFields,
    answer_format,
    fork_point,
    includes_usage,
    priority_of,
    served_tier,
    with_format,
)
from corosrv.images.intake import ImageIntake


class Logprobs:
    """Shows the tokens of one choice, in one piece or in several; offsets count characters of the choice's text."""

    def __init__(self, offset: int = 0) -> None:
        """`offset`: where the first token's text begins; below 0 for tokens that stand before the text."""
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, tokens: Sequence[TokenInfo]) -> TextLogprobs:
        return TextLogprobs(
            [_spell(token.piece) for token in tokens],
            [token.logprob for token in tokens],
            [_top(token) for token in tokens],
            [self._advance(token) for token in tokens],
        )

    def _advance(self, token: TokenInfo) -> int:
        """Returns where the token begins, and moves behind it."""
        begin = max(self._offset, 0)
        self._offset += len(self._decoder.decode(token.piece))
        return begin


def _top(token: TokenInfo) -> dict[str, float] | None:
    """Returns the likeliest tokens, and the one that came if it is none of them."""
    if token.logprob is None:
        return None
    return {_spell(other.piece): other.logprob for other in token.top} | {_spell(token.piece): token.logprob}


def _spell(piece: bytes) -> str:
    """Spells a piece as OpenAI does, also one that is no whole character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


_NO_ECHO = Echo("")


class _WholeText:
    """One task's answer that is not streamed."""

    __slots__ = ("finish", "prompt_info", "text", "tokens")

    def __init__(self) -> None:
        self.text = ""
        self.finish: Finish | None = None
        self.tokens: list[TokenInfo] = []
        self.prompt_info: list[TokenInfo] = []

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.prompt_info += chunk.prompt_info
        if chunk.finish is not None:
            self.finish = events.finish_word(chunk.finish.value)

    @property
    def mean_logprob(self) -> float:
        return sum(token.logprob or 0.0 for token in self.tokens) / max(len(self.tokens), 1)


class TextAnswer:
    """Puts one answer together from the chunks of its job."""

    __slots__ = (
        "_extras", "_frame", "_is_post_sampling", "_logprobs", "_n", "_n_tasks", "_options", "_tally", "_text_frames"
    )  # fmt: skip

    def __init__(self, job: Job, card: ModelCard, options: AnswerOptions) -> None:
        # Not the job itself: its prompts would be kept until the stream ends.
        self._n = job.n
        self._n_tasks = job.n_tasks
        self._is_post_sampling = job.sampling.post_sampling_probs
        self._options = options
        self._tally = Tally(job.n)
        self._frame = events.Frame(TextCompletion, "cmpl-", "text_completion", card, job.n_tasks, options)
        self._extras = LlamaExtras.for_answer(job.n_tasks, options)
        # What stands before and after the text, a JSON string, in an event of each choice; made when it is needed.
        self._text_frames: dict[int, tuple[bytes, bytes]] = {}
        self._logprobs: dict[int, Logprobs] = {}  # of each choice of a stream

    @property
    def id(self) -> str:
        return self._frame.id

    def complete(self, chunks: list[Chunk]) -> TextCompletion:
        tried = [_WholeText() for _ in range(self._n_tasks)]
        for chunk in chunks:
            self._tally.add(chunk)
            tried[chunk.index].add(chunk)
        choices = [self._choice(index, choice) for index, choice in Turns().among(enumerate(self._best(tried)))]
        answer: TextCompletion = self._frame.complete(choices, self._tally, **self._extras.of_answer(chunks))
        return answer

    def _best(self, tried: Sequence[_WholeText]) -> list[_WholeText]:
        n, n_tried = self._options.n, self._n
        if n == n_tried:
            return list(tried)
        groups = (tried[first : first + n_tried] for first in range(0, len(tried), n_tried))
        return [best for group in groups for best in sorted(group, key=lambda text: -text.mean_logprob)[:n]]

    def _choice(self, index: int, choice: _WholeText) -> TextChoice:
        echo = self._echo(index, self._options.n)
        logprobs: TextLogprobs | None = None
        if self._options.logprobs:
            logprobs = Logprobs(echo.offset).show([*choice.prompt_info, *choice.tokens])
        elif self._options.probs:
            logprobs = self._probs(choice.tokens)
        return TextChoice(index, echo.text + choice.text, logprobs, choice.finish)

    def _echo(self, index: int, n: int) -> Echo:
        return _NO_ECHO if self._options.echoes is None else self._options.echoes[index // n]

    def first(self) -> bytes:
        if self._options.echoes is None or self._options.logprobs:
            return b":\n\n"  # an echo with logprobs waits for these
        echoes = ((index, self._echo(index, self._n).text) for index in range(self._n_tasks))
        return b"".join(self._piece(index, echo) for index, echo in echoes if echo) or b":\n\n"

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        sent = b""
        for chunk in split_tokens(chunks) if self._extras.is_wanted or self._options.probs else chunks:
            self._tally.add(chunk)
            if self._extras.is_wanted or self._options.probs:
                sent += self._events_with_extras(chunk)
            elif self._options.logprobs:
                sent += self._piece_with_logprobs(chunk)
            elif text := chunk.text:
                sent += self._piece(chunk.index, text)
            if chunk.finish is not None:
                end = TextChoice(chunk.index, "", None, events.finish_word(chunk.finish.value))
                sent += self._frame.end(end, self._tally, **self._extras.at_end(chunk))
        return sent

    def _events_with_extras(self, chunk: Chunk) -> bytes:
        sent = b""
        for progress in self._extras.progress(chunk):
            sent += self._frame.event(TextChoice(chunk.index, "", None, None), **progress)
        extras = self._extras.add(chunk)
        if self._options.logprobs:
            return sent + self._piece_with_logprobs(chunk, **extras)
        probs = self._probs(chunk.tokens) if self._options.probs and chunk.tokens else None
        if not chunk.text and not extras and probs is None:
            return sent
        return sent + self._frame.event(TextChoice(chunk.index, chunk.text, probs, None), **extras)

    def _probs(self, tokens: Iterable[TokenInfo]) -> TextLogprobs:
        return TextLogprobs(content=native.describe_all(tokens, self._is_post_sampling))

    def _piece(self, index: int, text: str) -> bytes:
        prefix, suffix = self._text_frames.get(index) or self._make_text_frame(index)
        return prefix + events.encode(text) + suffix

    def _make_text_frame(self, index: int) -> tuple[bytes, bytes]:
        frame = self._frame.text_frame(b'{"index":%d,"text":' % index, b',"logprobs":null,"finish_reason":null}')
        self._text_frames[index] = frame
        return frame

    def _piece_with_logprobs(self, chunk: Chunk, **extras: Any) -> bytes:
        text, index = chunk.text, chunk.index
        tokens = chunk.prompt_info + chunk.tokens
        if not text and not tokens:
            return b""
        if index not in self._logprobs:
            echo = self._echo(index, self._n)
            text = echo.text + text
            self._logprobs[index] = Logprobs(echo.offset)
        return self._frame.event(TextChoice(index, text, self._logprobs[index].show(tokens), None), **extras)

    def failure(self, error: CorosrvError) -> bytes:
        return events.failure(error)


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
    point = None if body.fork is None else fork_point(body.fork, body, _OF_PROMPT, forked, find_vocabulary)
    if point is None:
        checked_prompts = _prompts(body, vocabulary, images, embeds or EmbedsReader(False, lambda: card))
    else:
        checked_prompts = (Tokens(point.prompt),)
    job = _job(body, _with_suffix(body, checked_prompts, vocabulary), card)
    if body.grammar_lazy or body.preserved_tokens:
        job = native.with_triggers(job, body, find_vocabulary)
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
    pings = body.sse_ping_interval
    return Call(job, options.stream, answer, priority, forkable=forkable, card=card, ping_interval=pings)


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
