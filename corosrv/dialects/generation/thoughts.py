"""Limits a model's thoughts where no template made the prompt, by the tags that stand around them.

Such a prompt may have begun thoughts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Job, ModelCard, MultimodalText, Prompt, Text, ThoughtBudget, Tokens, Vocabulary
from corosrv.dialects.generation.fields import ThoughtFields, budget_name, thought_message, thought_tokens
from corosrv.formats.bodies import check_text

MAX_TAG = 256  # characters
MAX_TAGS = 16

ThoughtTag = Annotated[str, Meta(max_length=MAX_TAG)]

_END_TAGS = ("reasoning_budget_end_tags", "reasoning_budget_end_tag")


class TaggedThoughtFields(ThoughtFields, kw_only=True):
    """The fields of llama-server's clients, which say what stands around the thoughts."""

    reasoning_budget_start_tag: ThoughtTag | None = None
    reasoning_budget_end_tag: ThoughtTag | None = None
    reasoning_budget_end_tags: Annotated[list[ThoughtTag], Meta(max_length=MAX_TAGS)] | None = None


def with_budget(job: Job, fields: ThoughtFields, card: ModelCard, vocabulary: Vocabulary) -> Job:
    """Limits the thoughts of a job whose prompts are raw: they begin in the prompt, or the answer begins with them.

    The tags are the request's, or those of the model; of a model that has none, nothing is a thought. May wait as
    `tokenize` does. Raises Refused.
    """
    tokens, tags = thought_tokens(fields), _tags(fields) or card.reasoning_tags
    if tokens is None or tags is None:
        return job
    opening, closing = tags
    begun = {_ends_in_thoughts(prompt, opening, closing, vocabulary) for prompt in job.prompts}
    if len(begun) > 1:
        words = "some of the prompts begin thoughts and others do not: send them apart"
        raise Refused(f"{budget_name(fields)}: {words}", budget_name(fields))
    message = thought_message(fields)
    message = card.thought_message if message is None else message
    budget = ThoughtBudget(tokens, closing, "" if begun == {True} else opening, message)
    return replace(job, sampling=replace(job.sampling, thoughts=budget))


def _tags(fields: ThoughtFields) -> tuple[str, str] | None:
    """Returns what the request says stands around thoughts; None where it does not say."""
    if not isinstance(fields, TaggedThoughtFields):
        return None
    start, ends = fields.reasoning_budget_start_tag or "", _end_tags(fields)
    if not start and not ends:
        return None
    if not start or not ends:
        name = _END_TAGS[0] if start else "reasoning_budget_start_tag"
        raise Refused(f"{name}: the tags that begin and end thoughts are sent together", name)
    return check_text(start, "reasoning_budget_start_tag"), check_text(ends[0], _END_TAGS[0])


def _end_tags(fields: TaggedThoughtFields) -> Sequence[str]:
    tags = fields.reasoning_budget_end_tags
    if tags is None:
        tags = [fields.reasoning_budget_end_tag or ""]
    tags = list(dict.fromkeys(tag for tag in tags if tag))
    if len(tags) > 1:
        raise NotSupported(f"{_END_TAGS[0]}: thoughts end with one tag here, not with {len(tags)}", _END_TAGS[0])
    return tags


def _ends_in_thoughts(prompt: Prompt, opening: str, closing: str, vocabulary: Vocabulary) -> bool:
    text = _text_of(prompt, vocabulary)
    return text.rfind(opening) > text.rfind(closing)


def _text_of(prompt: Prompt, vocabulary: Vocabulary) -> str:
    if isinstance(prompt, Text):
        return prompt.text
    if isinstance(prompt, Tokens):
        return vocabulary.spell(prompt.ids).decode("utf-8", "replace")
    if isinstance(prompt, MultimodalText):
        return "".join(part for part in prompt.parts if isinstance(part, str))
    return ""  # embedding rows
