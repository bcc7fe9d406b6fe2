"""Chat completions, the way in: messages to what templates take, and bodies to calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Job, Messages, ModelCard, Vocabulary, check_template_arguments
from corosrv.dialects.chat.conversation import (
    PART_END,
    CallMode,
    CallPolicy,
    Content,
    Conversation,
    Part,
    Turn,
    allowed_tools,
    check_count,
    join,
    misplaced_image,
)
from corosrv.dialects.chat.conversation import arguments as arguments_of
from corosrv.dialects.chat.conversation import tool as make_tool
from corosrv.dialects.chat.prepare import RepeatParser, asks_to_think, prepare
from corosrv.dialects.generation import fields
from corosrv.dialects.generation.call import AnswerOptions, Call
from corosrv.dialects.generation.forks import ForkableAnswer, ForkPoint, make_forkable
from corosrv.dialects.generation.native import with_triggers
from corosrv.dialects.openai.chat import schema
from corosrv.dialects.openai.chat.answers import ChatAnswer
from corosrv.dialects.openai.events import native_form
from corosrv.dialects.openai.structured_fields import (
    answer_format,
    fork_point,
    includes_usage,
    priority_of,
    served_tier,
    with_grammar,
)
from corosrv.formats.bodies import check_text
from corosrv.images.intake import ImageIntake, read_detail

_PREDICTION = "prediction.content"


def _prediction(predicted: schema.PredictedOutput) -> str:
    """Returns the text that much of the answer is expected to be."""
    content = predicted.content
    return check_text(content if isinstance(content, str) else "".join(part.text for part in content), _PREDICTION)


_POLICIES = {mode.value: CallPolicy(mode) for mode in CallMode}


def _tools(body: schema.ChatBody) -> tuple[dict[str, Any], ...]:
    """Returns the tools that the model may call. Raises Refused for too many."""
    if not body.tools:
        return ()
    check_count(body.tools)
    functions = [tool.function for tool in body.tools]
    tools = tuple(make_tool(function.name, function.description, function.parameters) for function in functions)
    if isinstance(body.tool_choice, schema.AllowedChoice):
        names = [tool.function.name for tool in body.tool_choice.allowed_tools.tools]
        return allowed_tools(tools, names, "tool_choice.allowed_tools.tools")
    return tools


def _tool_choice(body: schema.ChatBody) -> CallPolicy:
    choice = body.tool_choice
    if isinstance(choice, schema.NamedTool):
        return CallPolicy(CallMode.REQUIRED, choice.function.name)
    if isinstance(choice, schema.AllowedChoice):
        return _POLICIES[choice.allowed_tools.mode]
    return _POLICIES[choice or "auto"]


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def _turns(messages: list[schema.Message], images: ImageIntake | None = None) -> tuple[dict[str, Any], ...]:
    """Messages as templates take them; `images` is None where the model takes none, and otherwise waits for them.

    Raises Refused, which names the place.
    """
    if images is not None:
        images.expect(sum(map(_n_images, messages)), "messages")
    names: dict[str, str] = {}  # of the functions called so far, by the calls' ids
    last = len(messages) - 1
    return tuple([_turn(message, f"messages[{i}]", names, i == last, images) for i, message in enumerate(messages)])


def _n_images(message: schema.Message) -> int:
    content = message.content
    return sum(part.get("type") == "image_url" for part in content) if isinstance(content, list) else 0


def _turn(
    message: schema.Message, param: str, names: dict[str, str], is_last: bool, images: ImageIntake | None
) -> dict[str, Any]:
    if message.function_call:
        raise NotSupported(f"{param}.function_call: send tool_calls instead", param, "unsupported_parameter")
    if message.role not in _ROLES:
        raise Refused(
            f"{param}.role must be system, developer, user, assistant or tool, not '{message.role[:40]}'",
            f"{param}.role",
        )
    # As llama-server joins the parts of a message, and those of one that is to be continued.
    between = "\n\n" if is_last and message.role == "assistant" else PART_END
    content = _content(message, f"{param}.content", between, images)
    turn: dict[str, Any] = {"role": _ROLES[message.role], "content": content}
    if message.role == "tool":
        turn |= _result_members(message, param, names)
    if message.role == "assistant":
        turn |= _assistant_members(message, param, names)
    elif message.tool_calls:
        raise Refused(f"{param}.tool_calls: only the assistant calls tools", f"{param}.tool_calls")
    return turn


def _result_members(message: schema.Message, param: str, names: dict[str, str]) -> dict[str, Any]:
    """Returns the id of the call that a tool's message answers, and the function's name where that is known."""
    if message.tool_call_id is None:
        raise Refused(
            f"{param}.tool_call_id is required: the id of the call that this is the result of",
            f"{param}.tool_call_id",
            "missing_required_parameter",
        )
    name = message.name or names.get(message.tool_call_id)
    members = {"tool_call_id": check_text(message.tool_call_id, f"{param}.tool_call_id")}
    return members if name is None else members | {"name": check_text(name, f"{param}.name")}


def _assistant_members(message: schema.Message, param: str, names: dict[str, str]) -> dict[str, Any]:
    """Returns what an assistant's message has besides its content."""
    members: dict[str, Any] = {}
    if message.reasoning_content:
        members["reasoning_content"] = check_text(message.reasoning_content, f"{param}.reasoning_content")
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        members["tool_calls"] = [_call(call, f"{param}.tool_calls[{i}]", names) for i, call in calls]
    return members


def _call(call: schema.ToolCall, param: str, names: dict[str, str]) -> dict[str, Any]:
    name = names[call.id] = check_text(call.function.name, f"{param}.function.name")
    arguments = arguments_of(call.function.arguments, f"{param}.function.arguments")
    function = {"name": name, "arguments": arguments}
    return {"id": check_text(call.id, f"{param}.id"), "type": "function", "function": function}


def _content(message: schema.Message, param: str, between: str, images: ImageIntake | None) -> Content:
    content = message.content
    if isinstance(content, str):
        return check_text(content, param)
    if isinstance(content, list):
        parts = enumerate(content)
        return join((_part(part, f"{param}[{i}]", message.role, images) for i, part in parts), between)
    if message.role == "assistant" and (content is None or message.tool_calls):
        return ""
    raise Refused(f"{param} is required: a string or a list of parts", param, "missing_required_parameter")


def _part(part: dict[str, Any], param: str, role: str, images: ImageIntake | None) -> Part:
    kind = part.get("type")
    if kind == "image_url" and images is not None:
        if role != "user":
            raise misplaced_image(param, "messages of the user")
        return _image(part.get("image_url"), f"{param}.image_url", images)
    if kind not in ("text", "refusal"):
        read = "'text'" if images is None else "'text' and 'image_url'"
        words = f"this model reads parts of type {read} only, not {str(kind)[:40]!r}"
        raise NotSupported(f"{param}: {words}", param, "unsupported_content")
    text = part.get(kind)
    if not isinstance(text, str):
        raise Refused(f"{param}.{kind} must be a string", f"{param}.{kind}")
    return check_text(text, f"{param}.{kind}")


def _image(value: object, param: str, images: ImageIntake) -> Part:
    """Reads the image of a URL, which stands by itself or in an object with its `detail`."""
    url, detail = (value.get("url"), value.get("detail")) if isinstance(value, dict) else (value, None)
    if not isinstance(url, str):
        raise Refused(f"{param} must be a URL, or an object with a url", param)
    return images.from_url(url, param, read_detail(detail, f"{param}.detail"))


def _template_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Checks the arguments: none takes the place of what the server tells the template. Raises Refused."""
    try:
        return check_template_arguments(arguments)
    except ValueError as error:
        raise Refused(f"chat_template_kwargs.{error}", "chat_template_kwargs") from None


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
        card = replace(
            card,
            splits_reasoning=body.reasoning_format != "none",
            repeats_reasoning=body.reasoning_format == "deepseek-legacy",
        )
    point = None if body.fork is None else fork_point(body.fork, body, _OF_PROMPT, forked, find_vocabulary)
    earlier = "" if point is None else point.text
    asked = conversation(body, card, images, point)
    if body.grammar_lazy or body.preserved_tokens:
        asked = msgspec.structs.replace(asked, job=with_triggers(asked.job, body, find_vocabulary))
    job, parser = prepare(asked, card, earlier, find_vocabulary)
    if card.repeats_reasoning and card.reasoning_tags is not None:
        parser = RepeatParser(parser, card.reasoning_tags)
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
        native_form=native_form(body, job, card, find_vocabulary) if body.verbose else None,
    )
    answer = ChatAnswer(job, card, parser, options)
    controlled = answer.id if body.reasoning_control else ""
    if forkable is not None:
        forkable.id = answer.id
    priority = body.priority if body.service_tier is None else priority_of(body)
    pings = body.sse_ping_interval
    return Call(
        job, options.stream, answer, priority, forkable=forkable, card=card, ping_interval=pings, controlled=controlled
    )


def conversation(
    body: schema.ChatBody, card: ModelCard, images: ImageIntake | None = None, point: ForkPoint | None = None
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
        job = replace(job, prediction=_prediction(body.prediction))
    job, form = with_grammar(job, answer_format(body), card)
    return Conversation(
        job,
        tool_choice=_tool_choice(body),
        parallel_calls=body.parallel_tool_calls is not False,
        answer_format=form,
        echo=bool(body.echo),
        thinks=False if body.reasoning_effort == "none" else None,
        thought_tokens=fields.thought_tokens(body),
        may_end_thoughts=bool(body.reasoning_control),
        thought_message=fields.thought_message(body),
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
    return replace(opening, tools=_tools(body))


def opening_of(job: Job, card: ModelCard) -> Messages:
    """Returns the conversation of a chat's job without its messages: what says how the answer begins."""
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
    turns = _turns(body.messages, images)
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
    arguments = _template_arguments(body.chat_template_kwargs) if body.chat_template_kwargs else {}
    if body.reasoning_effort is not None:
        arguments = {"reasoning_effort": check_text(body.reasoning_effort, "reasoning_effort"), **arguments}
    return Messages(
        turns,
        _tools(body),
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
