"""Parses the bodies of Ollama's chats and texts to calls, and texts that are to be embedded to jobs.

Drops the oldest turns of a conversation that is too long for its model, as Ollama does, unless told otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from corosrv.base.errors import NotSupported, Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import (
    Chunk,
    EmbedJob,
    Image,
    Job,
    Messages,
    ModelCard,
    MultimodalText,
    Prompt,
    Text,
    Tokens,
    Vocabulary,
)
from corosrv.dialects.chat import conversation
from corosrv.dialects.chat.conversation import (
    Content,
    ContextRoom,
    Conversation,
    Turn,
    check_count,
    misplaced_image,
    newest_turns,
)
from corosrv.dialects.chat.prepare import Parser, TextParser, prepare
from corosrv.dialects.generation import fields, prompts
from corosrv.dialects.generation.call import Call, floats, prompt_tokens_of, vectors_of
from corosrv.dialects.ollama import schema
from corosrv.dialects.ollama.answers import (
    OllamaChatAnswer,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaTextAnswer,
    Stopwatch,
)
from corosrv.formats.bodies import check_text
from corosrv.images.intake import ImageIntake

_INFILL_PARAMS = ("prompt", "suffix", "prompt", "prompt")
_ANY_OBJECT = {"type": "object"}
# Between roles and texts of a rendered conversation: what a message takes at most besides its content.
_MESSAGE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class AskedModel:
    """The model that a request asks: its card, what reads texts for it, and its name as the client has it."""

    card: ModelCard
    find_vocabulary: Callable[[], Vocabulary]
    name: str
    images: ImageIntake | None = None

    def lacks(self, ability: str, param: str) -> Refused:
        """Makes the error for what this model cannot do, in Ollama's words, which its clients look for."""
        return Refused(f'"{self.name}" does not support {ability}', param, "unsupported_content")


def chat(body: schema.OllamaChatBody, model: AskedModel, stopwatch: Stopwatch) -> Call:
    """Checks a chat. Waits for images, and while a long conversation is counted. Raises Refused."""
    history = turns(body.messages or (), model.images)
    tools = _tools(body, model)

    def prompt(history: tuple[Turn, ...]) -> Messages:
        # A last message of the assistant is the beginning of the answer, which the model continues.
        is_begun = history[-1]["role"] == "assistant" and "tool_calls" not in history[-1]
        arguments = _template_arguments(body.think)
        return Messages(history, tools, not is_begun, continue_final=is_begun, template_arguments=arguments)

    options = schema.sampling_options(body)
    job = _job(body, options, prompt(history), model)
    if body.truncate is not False and _may_be_long(history, tools, model.card):
        room = ContextRoom(model.card.meta.get("n_ctx", 0), job.max_tokens, model.find_vocabulary().count)
        kept_turns = newest_turns(history, lambda turns: room.holds(prompt(turns)))
        job = replace(job, prompts=(prompt(kept_turns),))
    job, parser = _prepared(body, job, model)
    return _call(body, job, OllamaChatAnswer(model.name, parser, stopwatch, bool(body.logprobs)))


def text(body: schema.OllamaGenerateBody, model: AskedModel, stopwatch: Stopwatch) -> Call:
    """Checks a text to be generated; waits for images. Raises Refused, which names the parameter."""
    check_text_fields(body)
    options = schema.sampling_options(body)
    if body.raw or body.suffix or "chat" not in model.card.capabilities:
        return _raw_text(body, options, model, stopwatch)
    content = _with_images(body.prompt or "", body.images, "", model.images)
    said: list[Turn] = [] if not body.system else [{"role": "system", "content": check_text(body.system, "system")}]
    said.append({"role": "user", "content": content})
    prompt = Messages(tuple(said), param="prompt", template_arguments=_template_arguments(body.think))
    job, parser = _prepared(body, _job(body, options, prompt, model), model)
    return _call(body, job, OllamaTextAnswer(model.name, parser, stopwatch, bool(body.logprobs)))


def is_empty(body: schema.OllamaChatBody | schema.OllamaGenerateBody) -> bool:
    """Returns whether a request asks for no answer: its model is to be loaded or unloaded."""
    if isinstance(body, schema.OllamaChatBody):
        return not body.messages
    return not (body.prompt or body.suffix or body.images)


def _call(body: schema.AnsweredBody, job: Job, answer: OllamaChatAnswer | OllamaTextAnswer) -> Call:
    return Call(job, body.stream is not False, answer, body.priority, is_lines=True)


def _job(body: schema.AnsweredBody, options: schema.SamplingOptions, prompt: Prompt, model: AskedModel) -> Job:
    job = fields.job(
        schema.generation_fields(body, options, model.card.id), (prompt,), model.card.defaults, n_probs=body.n_probs
    )
    return replace(job, stop=fields.stops(options.stop, "options.stop"))


def _prepared(body: schema.AnsweredBody, job: Job, model: AskedModel) -> tuple[Job, Parser]:
    if body.think and model.card.reasoning_tags is None:
        raise model.lacks("thinking", "think")
    thinks = None if body.think is None else bool(body.think)
    return prepare(Conversation(job, answer_format=schema.answer_format(body.format), thinks=thinks), model.card)


def _template_arguments(think: schema.Think | None) -> dict[str, Any]:
    """Returns what tells a template how much its model is to think."""
    return {"reasoning_effort": think} if isinstance(think, str) else {}


def _may_be_long(turns: Sequence[Turn], tools: Sequence[Any], card: ModelCard) -> bool:
    """Returns whether a conversation may leave too little room for an answer: no token has less than a byte."""
    n_bytes = len(msgspec.json.encode(tools)) + sum(_MESSAGE_TOKENS + _most_bytes(turn) for turn in turns)
    return conversation.n_images(turns) > 0 or 2 * n_bytes > int(card.meta.get("n_ctx", 0))


def _most_bytes(turn: Turn) -> int:
    """Returns a number of bytes that a turn does not exceed, without encoding it. Its images do not count."""
    content = turn["content"]
    texts = [content] if isinstance(content, str) else [part for part in content if isinstance(part, str)]
    texts.append(turn.get("reasoning_content", ""))
    return sum(len(text) * (1 if text.isascii() else 4) for text in texts) + len(
        msgspec.json.encode(turn.get("tool_calls", ()))
    )


# Turns


def turns(messages: Sequence[schema.OllamaTurn], intake: ImageIntake | None) -> tuple[Turn, ...]:
    """Returns the messages as templates take them. Waits for images. Raises Refused, which names the place."""
    if intake is not None:
        intake.expect(sum(len(message.images or ()) for message in messages), "messages")
    pending: list[tuple[str, str]] = []  # ids and names of the calls that have no result yet
    return tuple(_turn(message, number, pending, intake) for number, message in enumerate(messages))


def _turn(message: schema.OllamaTurn, number: int, pending: list[tuple[str, str]], intake: ImageIntake | None) -> Turn:
    param = f"messages[{number}]"
    if message.images and message.role in ("system", "assistant"):
        raise misplaced_image(f"{param}.images", "messages of the user and results of tools")
    content = _with_images(message.content or "", message.images, f"{param}.", intake, is_counted=True)
    turn: Turn = {"role": message.role, "content": content}
    if message.role == "tool":
        return turn | _result(message, param, number, pending)
    if message.role != "assistant":
        if message.tool_calls:
            raise Refused(f"{param}.tool_calls: only the assistant calls tools", f"{param}.tool_calls")
        return turn
    if message.thinking:
        turn["reasoning_content"] = check_text(message.thinking, f"{param}.thinking")
    if message.tool_calls:
        calls = [
            _called(call, f"{param}.tool_calls[{i}]", f"call_{number}_{i}") for i, call in enumerate(message.tool_calls)
        ]
        pending += [(call["id"], call["function"]["name"]) for call in calls]
        turn["tool_calls"] = calls
    return turn


def _called(call: schema.OllamaCall, param: str, own_id: str) -> dict[str, Any]:
    name = check_text(call.function.name, f"{param}.function.name")
    arguments = conversation.arguments(call.function.arguments, f"{param}.function.arguments")
    id = check_text(call.id, f"{param}.id") if call.id else own_id
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(message: schema.OllamaTurn, param: str, number: int, pending: list[tuple[str, str]]) -> dict[str, Any]:
    """Returns the id and the name of the call that a message answers: the one named, or the first without a result."""
    id = check_text(message.tool_call_id or "", f"{param}.tool_call_id")
    name = check_text(message.tool_name or message.name or "", f"{param}.tool_name")
    found = next((call for call in pending if (call[0] == id if id else name in ("", call[1]))), None)
    if found is not None:
        pending.remove(found)
        id, name = found[0], name or found[1]
    members = {"tool_call_id": id or f"call_{number}"}
    return members | {"name": name} if name else members


def _with_images(
    text: str, images: Sequence[str] | None, param: str, intake: ImageIntake | None, *, is_counted: bool = False
) -> Content:
    """Returns a text with images, which come as base64, before it. Waits for them.

    `is_counted`: the request's images have been counted.
    """
    content = check_text(text, f"{param}content" if param else "prompt")
    if not images:
        return content
    place = f"{param}images"
    if intake is None:
        raise NotSupported(f"{place}: this model reads text only", place, "unsupported_content")
    if not is_counted:
        intake.expect(len(images), place)
    read: list[str | Image] = [intake.from_base64(data, f"{place}[{i}]") for i, data in enumerate(images)]
    return (*read, content) if content else tuple(read)


def _tools(body: schema.OllamaChatBody, model: AskedModel) -> tuple[dict[str, Any], ...]:
    check_count(body.tools or ())
    if body.tools and "tools" not in model.card.capabilities:
        raise model.lacks("tools", "tools")
    functions = (tool.function for tool in body.tools or ())
    return tuple(conversation.tool(function.name, function.description, function.parameters) for function in functions)


# Texts


def check_text_fields(body: schema.OllamaGenerateBody) -> None:
    """Raises Refused for what is not done here, and for fields that contradict each other."""
    if body.template:
        raise NotSupported("template: a template in a request is not run here", "template")
    if body.context:
        raise NotSupported("context: token ids are not continued here: send the conversation to /api/chat", "context")
    if body.raw and body.system:
        raise Refused("raw: a raw prompt has no place for system: put it into the prompt", "system")
    if body.suffix and (body.system or body.images):
        raise Refused("suffix: a gap is filled between prompt and suffix, without system and images", "suffix")
    if (body.raw or body.suffix) and body.think:
        raise Refused("think: thoughts are told apart only where the model's template writes the prompt", "think")


def _raw_text(
    body: schema.OllamaGenerateBody, options: schema.SamplingOptions, model: AskedModel, stopwatch: Stopwatch
) -> Call:
    """Makes the call for a prompt that no template writes."""
    if body.think:
        raise model.lacks("thinking", "think")
    job = _job(body, options, _raw_prompt(body, model), model)
    if (form := schema.answer_format(body.format)) is not None:
        value = _ANY_OBJECT if form.schema is None else form.schema
        job = fields.with_schema(job, value, model.card, form.param)
    return _call(body, job, OllamaTextAnswer(model.name, TextParser(), stopwatch, bool(body.logprobs)))


def _raw_prompt(body: schema.OllamaGenerateBody, model: AskedModel) -> Prompt:
    if body.suffix:
        vocabulary = model.find_vocabulary()
        if vocabulary.infill is None:
            raise model.lacks("insert", "suffix")
        hole = prompts.Hole(body.prompt or "", body.suffix)
        return prompts.prompt(hole, vocabulary.infill, vocabulary, _INFILL_PARAMS)
    system = f"{check_text(body.system, 'system')}\n\n" if body.system else ""
    content = _with_images(body.prompt or "", body.images, "", model.images)
    return (
        Text(system + content)
        if isinstance(content, str)
        else MultimodalText((system, *content) if system else content)
    )


_UNIT_LENGTH, _AS_IT_IS = 2, -1  # how a vector is normalised: see EmbedJob


def several_job(body: schema.OllamaEmbedBody, model: AskedModel) -> EmbedJob | None:
    """Makes a job with one vector for each text; None where there is none. Raises Refused, which names the parameter.

    A text that is longer than the context is cut, as Ollama does, unless the request has `truncate: false`.
    """
    _check_offered(model)
    if body.input is None:
        raise Refused("input is required", "input", "missing_required_parameter")
    texts = [body.input] if isinstance(body.input, str) else body.input
    inputs = [_input(text, i, body, model) for i, text in enumerate(Turns().among(texts)) if text or len(texts) > 1]
    return EmbedJob(tuple(inputs), _UNIT_LENGTH, model=model.card.id) if inputs else None


def single_job(body: schema.OllamaEmbeddingBody, model: AskedModel) -> EmbedJob | None:
    """Makes the job of the older endpoint, which has one text; None where it is empty. Raises Refused."""
    _check_offered(model)
    if not body.prompt:
        return None
    return EmbedJob((Text(check_text(body.prompt, "prompt")),), _AS_IT_IS, model=model.card.id)


def several_answer(
    chunks: Sequence[Chunk], model: AskedModel, stopwatch: Stopwatch, dimensions: int | None = None
) -> OllamaEmbeddings:
    """Makes the answer; `dimensions`: as many numbers each vector has, 0 and None for all."""
    return OllamaEmbeddings(
        model.name,
        [_cut(floats(vector), dimensions) for vector in vectors_of(chunks)],
        stopwatch.total,
        stopwatch.load,
        sum(prompt_tokens_of(chunks)),
    )


def single_answer(chunks: Sequence[Chunk]) -> OllamaEmbedding:
    return OllamaEmbedding(floats(vectors_of(chunks)[0]) if chunks else [])


def _cut(vector: list[float], size: int | None) -> list[float]:
    """Returns a vector's first numbers, with the length 1 again, as Ollama does for any model."""
    if not size or size >= len(vector):
        return vector
    length = math.hypot(*vector[:size]) or 1.0
    return [number / length for number in vector[:size]]


def _check_offered(model: AskedModel) -> None:
    if "embeddings" not in model.card.capabilities:
        raise model.lacks("embeddings", "model")
    if model.card.meta.get("pooling") == "none":
        raise NotSupported(
            "this model gives a vector for each token (COROSRV_POOLING=none), for which there is no room in this "
            "answer; use /embeddings",
            "model",
        )


def _input(text: str, number: int, body: schema.OllamaEmbedBody, model: AskedModel) -> Prompt:
    param = f"input[{number}]" if isinstance(body.input, list) else "input"
    if not text:
        raise Refused(f"{param} must not be empty", param)
    checked = check_text(text, param)
    context = int(model.card.meta.get("n_ctx", 0))
    if body.truncate is False or not context or len(checked.encode()) < context:  # no token has less than a byte
        return Text(checked)
    tokens = model.find_vocabulary().tokenize(checked, add_special=True, parse_special=True, param=param)
    return Tokens(tuple(tokens[:context])) if len(tokens) > context else Text(checked)
