"""The recipes of dialects: a route, a dialect, partial answers."""

import pytest

from tests.how_to.recipes import Recipe

pytestmark = [pytest.mark.slow]

SCHEMA = '''"""The body of a shout."""

from __future__ import annotations

from corosrv.dialects.generation import fields


class ShoutBody(fields.GenerationFields, kw_only=True):
    """A text to shout back."""

    text: str


decoder = fields.decoder(ShoutBody, {**fields.EVERYWHERE, "volume": ()})
'''
PARSE = '''"""Shouts, the way in: bodies to calls."""

from __future__ import annotations

from corosrv.contracts.jobs import ModelCard, Text
from corosrv.dialects.generation import fields
from corosrv.dialects.generation.call import Call
from corosrv.dialects.shout.answers import ShoutAnswer
from corosrv.dialects.shout.schema import ShoutBody


def call(body: ShoutBody, card: ModelCard) -> Call:
    """Makes the call. Raises Refused, which names the parameter."""
    return Call(fields.job(body, (Text(body.text),), card.defaults), bool(body.stream), ShoutAnswer())
'''
ANSWERS = '''"""Shouts, the way out: chunks to answers and events."""

from __future__ import annotations

from collections.abc import Sequence

from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs import Chunk
from corosrv.dialects.generation.call import event
from corosrv.dialects.shout.answer_types import Shout, body


class ShoutAnswer:
    """Puts one answer together; see corosrv.dialects.generation.call.Answer."""

    def complete(self, chunks: list[Chunk]) -> Shout:
        return Shout("".join(chunk.text for chunk in chunks).upper())

    def first(self) -> bytes:
        return b": shout\\n\\n"

    def events(self, chunks: Sequence[Chunk]) -> bytes:
        return b"".join(event(Shout(chunk.text.upper())) for chunk in chunks)

    def failure(self, error: CorosrvError) -> bytes:
        return event(body(error))
'''
ANSWER_TYPES = '''"""The types of shouts, and of their errors."""

from __future__ import annotations

import msgspec

from corosrv.base.errors import CorosrvError


class Shout(msgspec.Struct):
    """A text in capitals."""

    shout: str


class ShoutError(msgspec.Struct):
    """The body of every error."""

    complaint: str
    field: str | None = None


def body(error: CorosrvError) -> ShoutError:
    """Makes the answer or the event for an error."""
    return ShoutError(str(error).upper(), error.param)
'''
API_DOCS = '''"""The entries of shouts in the API document."""

from __future__ import annotations

from corosrv.dialects.shout import answer_types, schema
from corosrv.web.http.openapi import GENERATES, operation

shout = operation(
    "Shouts", "Shout", body=schema.ShoutBody, answer=answer_types.Shout, error=answer_types.ShoutError,
    statuses=GENERATES,
)
'''
ROUTES = '''"""The endpoint of shouts over any Worker."""

from __future__ import annotations

from flask import Blueprint, Response

from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.shout import answer_types, api_docs, parse, schema
from corosrv.web.http.reply import register_errors


def blueprint(flow: RequestFlow) -> Blueprint:
    """Makes the route."""
    routes = Blueprint("shout", __name__)

    @routes.post("/shout")
    @flow.once
    @api_docs.shout
    def shout() -> Response:
        body = flow.receive(schema.decoder)
        return flow.answer(parse.call(body, flow.worker.card(body.model)))

    register_errors(routes, answer_types.body)
    return routes
'''


def test_a_route_is_served_documented_and_refuses_by_name(tmp_path):
    recipe = Recipe("Add a route to a dialect", tmp_path)
    recipe.change(
        "corosrv/dialects/openai/completions.py",
        ("from msgspec import Meta\n", "import msgspec\nfrom msgspec import Meta\n"),
        (
            "",
            "class WeighBody(msgspec.Struct, kw_only=True):\n    text: str\n    model: str | None = None\n\n\n"
            'weigh_decoder = fields.decoder(WeighBody, {"scales": ()})\n',
        ),
    )
    recipe.change("corosrv/dialects/openai/answer_types.py", ("", "class Weight(msgspec.Struct):\n    n_tokens: int\n"))
    recipe.change(
        "corosrv/dialects/openai/api_docs.py",
        ("completions import CompletionBody\n", "completions import CompletionBody, WeighBody\n"),
        (
            "",
            'weigh = operation("Text", "Weigh a text", body=WeighBody, answer=answer_types.Weight, statuses=(400,))\n',
        ),
    )
    recipe.change(
        "corosrv/dialects/openai/routes.py",
        ("import ModelCard, Worker\n", "import ModelCard, Text, Worker\n"),
        ("import api_docs, completions, events\n", "import answer_types, api_docs, completions, events\n"),
        (
            "    register_errors(routes, events.body)\n",
            '    @routes.post("/v1/weigh")\n    @api_docs.weigh\n    def weigh() -> Response:\n'
            "        body = flow.receive(completions.weigh_decoder)\n"
            "        n_tokens = flow.worker.vocabulary(body.model).count(Text(body.text))\n"
            "        return json_response(answer_types.Weight(n_tokens))\n\n"
            "    register_errors(routes, events.body)\n",
        ),
    )

    with recipe.server() as client:
        weighed, refused, document = (
            client.post("/v1/weigh", text="Hello"),
            client.post("/v1/weigh", text="Hello", scales="brass"),
            client.get("/openapi.json"),
        )

    assert weighed[0] == 200
    assert weighed[1]["n_tokens"] > 0
    assert (refused[0], refused[1]["error"]["param"]) == (400, "scales")
    assert document[1]["paths"]["/v1/weigh"]["post"]["summary"] == "Weigh a text"


def test_a_dialect_answers_and_has_errors_of_its_own(tmp_path):
    recipe = Recipe("Add a dialect", tmp_path, "tests")
    texts = {
        "__init__": '"""Shouts: a dialect of one route."""\n', "schema": SCHEMA, "parse": PARSE, "answers": ANSWERS,
        "answer_types": ANSWER_TYPES, "api_docs": API_DOCS, "routes": ROUTES,
    }  # fmt: skip
    for name, text in texts.items():
        recipe.add(f"corosrv/dialects/shout/{name}.py", text)
    recipe.change(
        "corosrv/serving/models.py",
        (
            "from corosrv.dialects.openai.responses.store import ResponseStore\n",
            "from corosrv.dialects.openai.responses.store import ResponseStore\n"
            "from corosrv.dialects.shout import answer_types as shout_types\n"
            "from corosrv.dialects.shout import routes as shout\n",
        ),
        (
            "            anthropic.blueprint(flow),\n",
            "            anthropic.blueprint(flow),\n            shout.blueprint(flow),\n",
        ),
        (
            "    def error_body(self, error: CorosrvError, path: str) -> Any:\n",
            "    def error_body(self, error: CorosrvError, path: str) -> Any:\n"
            '        if path.startswith("/shout"):\n            return shout_types.body(error)\n',
        ),
    )
    recipe.change("tests/test_floor.py", ('    "processor",\n', '    "processor",\n    "shout",\n'))

    with recipe.server() as client:
        shouted = client.post("/shout", text="Hello", max_tokens=4)
        refused = client.post("/shout", text="Hello", volume=11)
        misplaced = client.get("/shout")
    held = recipe.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_floor.py", "-k", "shout")

    assert shouted[0] == 200
    assert shouted[1]["shout"]
    assert shouted[1]["shout"] == shouted[1]["shout"].upper()
    assert (refused[0], refused[1]["field"]) == (400, "volume")
    assert (misplaced[0], "complaint" in misplaced[1]) == (405, True)
    assert "1 passed" in held


def test_an_aborted_answer_of_a_dialect_is_joined_from_its_events(tmp_path):
    recipe = Recipe("Let a dialect give partial answers", tmp_path)
    recipe.change(
        "corosrv/gateway/forwarding/event_join.py",
        (
            "",
            'class ShoutJoin(EventJoin):\n    """Joins shouts."""\n\n'
            '    def __init__(self) -> None:\n        super().__init__()\n        self._text, self._end = "", ""\n\n'
            "    def take(self, event: dict[str, Any]) -> None:\n"
            '        self._text += event["shout"]\n        self._end = event.get("end", "")\n\n'
            "    @property\n    def is_complete(self) -> bool:\n        return bool(self._end)\n\n"
            "    def answer(self, unfinished: str | None = None) -> dict[str, Any]:\n"
            '        return {"shout": self._text, "end": self._end or unfinished}\n',
        ),
    )
    recipe.change(
        "corosrv/gateway/forwarding/peek.py",
        ("    return tuple(rows)\n", '    add(text, "Shout", "/shout")\n    return tuple(rows)\n'),
    )
    recipe.change(
        "corosrv/gateway/forwarding/streamed_body.py",
        (" NativeJoin, ResponseJoin, StreamedError\n", " NativeJoin, ResponseJoin, ShoutJoin, StreamedError\n"),
        ("| _MESSAGES | _RESPONSES\n", '| _MESSAGES | _RESPONSES | {"/shout"}\n'),
        (
            "    if path in _MESSAGES:\n",
            '    if path == "/shout":\n        return ShoutJoin()\n    if path in _MESSAGES:\n',
        ),
    )

    printed = recipe.program(
        "from corosrv.gateway.forwarding.event_join import ABORT\n"
        "from corosrv.gateway.forwarding.peek import BY_PATH\n"
        "from corosrv.gateway.forwarding.streamed_body import as_stream\n"
        'body, join = as_stream("/shout", b\'{"text": "a"}\')\n'
        'join.feed(b\'data: {"shout": "AB"}\\n\\ndata: {"sh\')\njoin.feed(b\'out": "C"}\\n\\n\')\n'
        'print(body, join.is_complete, join.answer(ABORT), BY_PATH["/shout"].tag)\n'
    )

    assert printed.split("\n")[0] == """b'{"text":"a","stream":true}' False {'shout': 'ABC', 'end': 'abort'} Text"""
