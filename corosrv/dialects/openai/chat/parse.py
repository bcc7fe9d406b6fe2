"""Chat completions, the way in: bodies to calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Job, Messages, ModelCard, Vocabulary
from corosrv.dialects.chat.conversation import Conversation, Turn
from corosrv.dialects.chat.prepare import asks_to_think, prepare
from corosrv.dialects.generation import fields
from corosrv.dialects.generation.call import AnswerOptions, Call
from corosrv.dialects.generation.forks import ForkableAnswer, ForkPoint, make_forkable
from corosrv.dialects.generation.thoughts import thought_message, thought_tokens
from corosrv.dialects.openai.chat import messages, schema
from corosrv.dialects.openai.chat.answers import ChatAnswer
from corosrv.dialects.openai.llama_extras import native_form
from corosrv.dialects.openai.structured_fields import (
    answer_format,
    check_fork,
    includes_usage,
    priority_of,
    served_tier,
    with_grammar,
)
from corosrv.formats.bodies import check_text
from corosrv.images.intake import ImageIntake


def call(
    body: schema.ChatBody,
    card: ModelCard,
    find_vocabulary: Callable[[], Vocabulary],
    images: ImageIntake | None = None,
    forked: ForkableAnswer | None = None,
) -> Call:
    """Checks a chat completion; waits for its images. Raises Refused, which names the parameter.

    `forked`: the answer that the body's `fork` names.
    """
    include_usage = includes_usage(body)
    loaded = card
    if body.reasoning_format is not None:
        card = replace(card, splits_reasoning=body.reasoning_format != "none")
    point = None
    if body.fork is not None:
        check_fork(body.fork, body, _OF_PROMPT)
    if body.fork is not None and forked is not None:
        point = forked.point(body.fork, find_vocabulary())
    job, parser = prepare(conversation(body, card, images, point), card, "" if point is None else point.text)
    opening = opening_of(job, card) if body.forkable else None
    if point is not None:
        job = point.branch(job)
    forkable = None
    if body.forkable:
        job, forkable = make_forkable(job, loaded, find_vocabulary(), point)
        forkable.opening = opening
    options = AnswerOptions.from_fields(
        body,
        usage=include_usage,
        compute=bool(body.include_compute),
        service_tier="" if body.service_tier is None else served_tier(body),
        logprobs=bool(body.logprobs or body.n_probs),
        native_form=native_form(body, job, card, find_vocabulary),
    )
    answer = ChatAnswer(job, card, parser, options)
    if forkable is not None:
        forkable.id = answer.id
    priority = body.priority if body.service_tier is None else priority_of(body)
    return Call(job, options.stream, answer, priority, forkable=forkable, card=card)


def conversation(
    body: schema.ChatBody,
    card: ModelCard,
    images: ImageIntake | None = None,
    point: ForkPoint | None = None,
) -> Conversation:
    """Reads what a body asks for; `images` is None where the model takes none; `point`: of a fork. Raises Refused."""
    n_probs = _n_probs(body)
    if body.verbose and body.return_tokens:
        n_probs = max(n_probs, 0)
    job = fields.job(
        body,
        (prompt(body, images) if point is None else _opening(body, point),),
        card.defaults,
        n=body.n or 1,
        n_probs=n_probs,
        post_sampling_probs=bool(body.post_sampling_probs),
    )
    if body.prediction is not None:
        job = replace(job, prediction=messages.prediction(body.prediction))
    job, form = with_grammar(job, answer_format(body), card)
    return Conversation(
        job,
        tool_choice=messages.tool_choice(body),
        parallel_calls=body.parallel_tool_calls is not False,
        answer_format=form,
        echo=bool(body.echo),
        thinks=False if body.reasoning_effort == "none" else None,
        thought_tokens=thought_tokens(body),
        thought_message=thought_message(body),
    )


def _n_probs(body: schema.ChatBody) -> int:
    """Returns how many likely tokens are listed for each; -1 where none are asked for, not even the one that came."""
    if body.top_logprobs is not None and not body.logprobs:
        raise Refused("top_logprobs is only allowed with logprobs: true", "top_logprobs")
    n_probs = max(body.top_logprobs or 0, body.n_probs or 0)
    if body.post_sampling_probs and not n_probs:
        raise Refused("post_sampling_probs is only allowed with top_logprobs or n_probs", "post_sampling_probs")
    return n_probs if body.logprobs else n_probs or -1


# Fields that make the prompt, or say how it is read.
_OF_PROMPT = (
    "messages", "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "echo",
    "reasoning_effort",
)  # fmt: skip


def _opening(body: schema.ChatBody, point: ForkPoint) -> Messages:
    """Returns what stands in place of the conversation of a fork: how its answer began, and the tools of its own."""
    opening = point.answer.opening
    if opening is None:
        raise Refused(f"fork.of: {point.answer.id} continues a prompt: fork it at /v1/completions", "fork.of")
    return replace(opening, tools=messages.tools(body))


def opening_of(job: Job, card: ModelCard) -> Messages:
    """Returns the conversation of a chat's job, which says how the answer begins, without the messages before that."""
    (asked,) = job.prompts
    assert isinstance(asked, Messages)
    thinks = asks_to_think(asked.template_arguments, card)
    arguments = {**asked.template_arguments, "enable_thinking": thinks}
    begun = asked.messages[-1:] if asked.continue_thoughts else ()
    return replace(asked, messages=begun, tools=(), continue_final=False, template_arguments=arguments)


def prompt(body: schema.ChatBody, images: ImageIntake | None = None) -> Messages:
    """Makes the conversation to be rendered. Raises Refused."""
    if body.chat_template is not None:
        raise NotSupported("chat_template: a template in a request is not run here", "chat_template")
    if body.messages is None:
        raise Refused("messages is required", "messages", "missing_required_parameter")
    turns = messages.turns(body.messages, images)
    is_last_ours = turns[-1]["role"] == "assistant" and "tool_calls" not in turns[-1]
    if is_last_ours and len(turns) > 1 and turns[-2]["role"] == "assistant":
        raise Refused("messages: two assistant messages in a row at the end", "messages")
    if body.add_generation_prompt and body.continue_final_message:
        raise Refused(
            "add_generation_prompt and continue_final_message contradict each other", "continue_final_message"
        )
    if body.continue_final_message and not is_last_ours:
        raise Refused("continue_final_message: the last message must be the assistant's", "continue_final_message")
    continue_final = is_last_ours and not body.add_generation_prompt and body.continue_final_message is not False
    continue_thoughts = continue_final and _continues_thoughts(turns[-1], body.continue_final_message)
    arguments = messages.template_arguments(body.chat_template_kwargs) if body.chat_template_kwargs else {}
    if body.reasoning_effort is not None:
        arguments = {"reasoning_effort": check_text(body.reasoning_effort, "reasoning_effort"), **arguments}
    return Messages(
        turns,
        messages.tools(body),
        add_generation_prompt=not continue_final and body.add_generation_prompt is not False,
        continue_final=continue_final,
        continue_thoughts=continue_thoughts,
        template_arguments=arguments,
    )


def _continues_thoughts(last: Turn, member: bool | str | None) -> bool:
    """Returns whether the thoughts of the last message go on, not its text; `member`: the one that is named."""
    has_thoughts_alone = bool(last.get("reasoning_content")) and not last["content"]
    if member == "reasoning_content" and not has_thoughts_alone:
        raise Refused(
            "continue_final_message: thoughts go on in a message that has reasoning_content and no content",
            "continue_final_message",
        )
    return has_thoughts_alone and member != "content"
