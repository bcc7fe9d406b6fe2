"""Fields that OpenAI's bodies share, among them those by which clients ask for an answer's form, OpenAI's and vLLM's.

`answer_format` makes one form of them, which becomes a grammar for the whole text of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Job, ModelCard, Vocabulary
from corosrv.contracts.jobs.terms import LAST_PRIORITY
from corosrv.dialects.chat import answer_grammar
from corosrv.dialects.chat.conversation import JsonFormat, PlainFormat, TaggedFormat
from corosrv.dialects.generation.fields import ThoughtFields, schema_limits
from corosrv.dialects.generation.forks import ForkableAnswer, ForkFields, ForkPoint
from corosrv.formats.bodies import check_text
from corosrv.formats.structured import grammar, read_tag

MAX_CHOICES = 128
MAX_PROBS = 100


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


ServiceTier = Literal["auto", "default", "flex", "scale", "priority"]

_FORKABLE = "The answer's tokens are kept for a while, so that later requests can `fork` it"
_FORK = (
    "In place of messages or a prompt: the answers go on from within an earlier one, that was asked for as `forkable`, "
    "and nothing that is still in the cache is computed again"
)


class TierFields(ThoughtFields, kw_only=True):
    service_tier: ServiceTier | None = None


class CompletionFields(TierFields, kw_only=True):
    forkable: Annotated[bool | None, Meta(description=_FORKABLE)] = None
    fork: Annotated[ForkFields | None, Meta(description=_FORK)] = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=MAX_PROBS)] | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    stream_options: StreamOptions | None = None
    verbose: bool | None = None
    include_compute: bool | None = None  # `usage` has the milliseconds of the machine; a stream ends with its usage


# With a fork: what its answer has decided already.
_DECIDED = ("lora", "cache_prompt")


def fork_point(
    fork: ForkFields,
    fields: CompletionFields,
    names: Iterable[str],
    forked: ForkableAnswer | None,
    find_vocabulary: Callable[[], Vocabulary],
) -> ForkPoint | None:
    """Returns where a fork branches off its answer, None without one.

    Raises Refused for fields that a fork cannot have: those of `names`, which make a prompt, and what is decided.
    """
    for name in (*names, *_DECIDED):
        value = getattr(fields, name)
        if value is not None and (name, value) != ("cache_prompt", True):
            raise Refused(f"fork and {name} contradict each other: branches have what their answer has", name)
    if fields.n is not None and fields.n != fork.n:
        raise Refused(f"n and fork.n contradict each other: there are {fork.n} branches", "n")
    return None if forked is None else forked.point(fork, find_vocabulary())


def includes_usage(fields: CompletionFields) -> bool:
    """Tells whether a stream ends with its usage. Raises Refused for options without a stream."""
    if fields.stream_options is None:
        return bool(fields.include_compute)
    if not fields.stream:
        raise Refused("stream_options is only allowed with stream: true", "stream_options")
    return bool(fields.stream_options.include_usage or fields.include_compute)


def priority_of(fields: TierFields) -> int | None:
    """Returns the priority that the body asks for: its own, or the last for what has time, `flex`.

    `priority` of the service tier is `default` here: which key goes first its operator decides, by the key's own tier.
    """
    return fields.priority or (LAST_PRIORITY if fields.service_tier == "flex" else None)


def served_tier(fields: TierFields) -> str:
    """Returns the service tier that the answer to a body with one names."""
    return "flex" if fields.service_tier == "flex" and not fields.priority else "default"


def input_tokens(n: int) -> dict[str, Any]:
    """Makes OpenAI's answer about the number of a prompt's tokens."""
    return {"object": "response.input_tokens", "input_tokens": n}


MAX_CHOICE_TEXTS = 1000

JsonSchema = dict[str, Any] | bool
WrittenSchema = JsonSchema | str  # a string holds the schema as JSON
ChoiceTexts = Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICE_TEXTS)]


class NamedSchema(msgspec.Struct):
    schema: JsonSchema
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = None
    schema: JsonSchema | None = None
    value: JsonSchema | None = None  # the same, as Hugging Face's clients call it
    structures: Any = None  # of a structural tag, as is what follows
    triggers: Any = None
    format: Any = None


class StructuredOutputs(msgspec.Struct):
    """The form of an answer as vLLM has it: one of a schema, a regular expression, texts, GBNF, any object, tags."""

    json: WrittenSchema | None = None
    regex: str | None = None
    choice: ChoiceTexts | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None  # a string holds it as JSON


class FormFields(CompletionFields, kw_only=True):
    """The fields of a body whose answer may be asked for in a form."""

    response_format: ResponseFormat | None = None
    json_schema: JsonSchema | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: WrittenSchema | None = None
    guided_regex: str | None = None
    guided_choice: ChoiceTexts | None = None
    guided_grammar: str | None = None


_forms_of = attrgetter(*FormFields.__annotations__)
_NO_FORMS = (None,) * len(FormFields.__annotations__)


@dataclass(frozen=True, slots=True)
class GrammarFormat:
    """The answer is a text of a GBNF grammar. `param` is where the grammar stood."""

    grammar: str
    param: str


RequestedFormat = JsonFormat | PlainFormat | TaggedFormat | GrammarFormat


def answer_format(fields: FormFields) -> RequestedFormat | None:
    """Returns the form that is asked for. Raises Refused for two of them, and for one without its schema."""
    return None if _forms_of(fields) == _NO_FORMS else _only(_formats(fields))


def format_of_outputs(outputs: StructuredOutputs | None) -> RequestedFormat | None:
    """Returns the form that `structured_outputs` alone asks for. Raises Refused for two of them."""
    return _only(_structured(outputs))


def with_format(job: Job, form: RequestedFormat | None, card: ModelCard) -> Job:
    """Makes the whole text of a job be of a form, if one is asked for. Raises Refused. Gives way for large schemas."""
    if form is None:
        return job
    if job.sampling.has_own_grammar:
        raise Refused(f"grammar and {_name(form)} contradict each other: send one of them", _name(form))
    if isinstance(form, GrammarFormat):
        text = form.grammar
    else:
        rules = answer_grammar.format_rules(form, schema_limits(card))
        text = grammar(rules.start, rules)
    return replace(job, sampling=replace(job.sampling, grammar=text, grammar_param=form.param))


def with_grammar(
    job: Job, form: RequestedFormat | None, card: ModelCard
) -> tuple[Job, JsonFormat | PlainFormat | TaggedFormat | None]:
    """Returns a chat's job, with the grammar if that is the form; and any other form, for `corosrv.dialects.chat`.

    Raises Refused.
    """
    if isinstance(form, GrammarFormat):
        return with_format(job, form, card), None
    return job, form


def _only(formats: Iterator[RequestedFormat]) -> RequestedFormat | None:
    first, second = next(formats, None), next(formats, None)
    if first is not None and second is not None:
        names = (_name(first), _name(second)) if _name(first) != _name(second) else (first.param, second.param)
        raise Refused(f"{names[0]} and {names[1]} contradict each other: send one of them", names[0])
    return first


def _name(form: RequestedFormat) -> str:
    return form.param.partition(".")[0]


def _formats(fields: FormFields) -> Iterator[RequestedFormat]:
    if fields.json_schema is not None:
        yield JsonFormat(fields.json_schema, "json_schema")
    yield from _structured(fields.structured_outputs)
    if fields.guided_json is not None:
        yield _json(fields.guided_json, "guided_json")
    yield from _texts(fields.guided_regex, fields.guided_choice, fields.guided_grammar, "guided_")
    if (form := _response_format(fields.response_format)) is not None:
        yield form


def _structured(outputs: StructuredOutputs | None) -> Iterator[RequestedFormat]:
    if outputs is None:
        return
    if outputs.structural_tag is not None:
        param = "structured_outputs.structural_tag"
        yield TaggedFormat(read_tag(outputs.structural_tag, param), param)
    if outputs.json is not None:
        yield _json(outputs.json, "structured_outputs.json")
    if outputs.json_object:
        yield JsonFormat(None, "structured_outputs.json_object")
    yield from _texts(outputs.regex, outputs.choice, outputs.grammar, "structured_outputs.")


def _texts(
    pattern: str | None, texts: list[str] | None, grammar_text: str | None, prefix: str
) -> Iterator[PlainFormat | GrammarFormat]:
    if pattern is not None:
        yield PlainFormat(f"{prefix}regex", pattern=check_text(pattern, f"{prefix}regex"))
    if texts is not None:
        yield PlainFormat(f"{prefix}choice", texts=tuple(check_text(text, f"{prefix}choice") for text in texts))
    if grammar_text is not None:
        if not grammar_text:
            raise Refused(f"{prefix}grammar must not be empty", f"{prefix}grammar")
        yield GrammarFormat(check_text(grammar_text, f"{prefix}grammar"), f"{prefix}grammar")


def _json(schema: WrittenSchema, param: str) -> JsonFormat:
    if not isinstance(schema, str):
        return JsonFormat(schema, param)
    try:
        return JsonFormat(msgspec.json.decode(schema, type=JsonSchema), param)
    except msgspec.MsgspecError as error:
        raise Refused(f"{param}: the string is no JSON schema: {error}", param) from None


def _response_format(form: ResponseFormat | None) -> JsonFormat | TaggedFormat | None:
    if form is None or form.type == "text":
        return None
    if form.type == "structural_tag":
        parts = {"structures": form.structures, "triggers": form.triggers, "format": form.format}
        present = {name: part for name, part in parts.items() if part is not None}
        return TaggedFormat(read_tag(present, "response_format"), "response_format")
    if form.type == "json_object":
        if form.value is not None:
            return JsonFormat(form.value, "response_format.value")
        return JsonFormat(form.schema, "response_format.schema")
    if form.json_schema is None:
        param = "response_format.json_schema"
        raise Refused(f"{param} is required: the schema, and a name", param, "missing_required_parameter")
    return JsonFormat(form.json_schema.schema, "response_format.json_schema.schema")
