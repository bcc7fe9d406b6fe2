"""What people do with litellm, one thing for each name on the command line; the last line is what came, as JSON.

A program of its own, because litellm does not live beside the newest openai.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import litellm

BASE, KEY, MODEL = (os.environ[name] for name in ("BASE", "KEY", "MODEL"))
QUESTION, PERSON = os.environ["QUESTION"], os.environ["PERSON"]
ASK: dict[str, Any] = {
    "model": f"openai/{MODEL}",
    "api_base": BASE,
    "api_key": KEY,
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 16,
    "timeout": 60,
}
CLAUDE = {**ASK, "model": f"anthropic/{MODEL}", "api_base": BASE.removesuffix("/v1")}
WHO = {**ASK, "messages": [{"role": "user", "content": PERSON}], "max_tokens": 60}
SCHEMA = json.loads(os.environ["SCHEMA"])
TOOL = {"type": "function", "function": {"name": "person", "description": "Notes a person.", "parameters": SCHEMA}}


def chat() -> Any:
    answer = litellm.completion(**ASK)
    return [answer.choices[0].message.content, answer.usage.completion_tokens]


def stream() -> Any:
    return [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**ASK, stream=True)]


def many() -> Any:
    async def ask() -> list[Any]:
        return await asyncio.gather(*(litellm.acompletion(**ASK) for _ in range(4)))

    return [answer.choices[0].message.content for answer in asyncio.run(ask())]


def claude() -> Any:
    return litellm.completion(**CLAUDE).choices[0].message.content


def claude_stream() -> Any:
    return [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**CLAUDE, stream=True)]


def response() -> Any:
    answer = litellm.responses(model=ASK["model"], input=QUESTION, api_base=BASE, api_key=KEY, max_output_tokens=16)
    return answer.output[0].content[0].text


def tool() -> Any:
    answer = litellm.completion(**WHO, tools=[TOOL], tool_choice="required")
    return answer.choices[0].message.tool_calls[0].function.arguments


def claude_tool() -> Any:
    answer = litellm.completion(**{**CLAUDE, **{name: WHO[name] for name in ("messages", "max_tokens")}}, tools=[TOOL],
                                tool_choice="required")  # fmt: skip
    return answer.choices[0].message.tool_calls[0].function.arguments


def schema() -> Any:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    return litellm.completion(**WHO, response_format=wanted).choices[0].message.content


def embedding() -> Any:
    answer = litellm.embedding(model=ASK["model"], input=["a cat", "tax law"], api_base=BASE, api_key=KEY)
    return [len(one["embedding"]) for one in answer.data]


def refused() -> Any:
    try:
        litellm.completion(**ASK, temperature=-1)
    except litellm.BadRequestError as error:
        return str(error)


def unknown_key() -> Any:
    try:
        litellm.completion(**{**ASK, "api_key": "wrong"})
    except litellm.AuthenticationError as error:
        return str(error)


def main() -> None:
    came: dict[str, Any] = {}
    for name in sys.argv[1:]:
        try:
            came[name] = globals()[name]()
        except Exception as error:
            came[name] = {"failed": repr(error)}
    print(json.dumps(came))


main()
