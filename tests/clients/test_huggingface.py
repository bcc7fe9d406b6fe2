"""huggingface_hub, whose client puts schemas where its own servers look for them."""

from __future__ import annotations

import json

import pytest

from tests.clients.conftest import KEY, MODEL, Run, of_clients
from tests.clients.people import PERSON, Person
from tests.serve.server import Server

pytestmark = pytest.mark.model

PROGRAM = """
import json, os
from huggingface_hub import InferenceClient

form = {"type": "json_schema", "json_schema": {"name": "person", "schema": json.loads(os.environ["SCHEMA"])}}
client = InferenceClient(base_url=os.environ["BASE"], api_key=os.environ["KEY"], timeout=60)
messages = [{"role": "user", "content": os.environ["PERSON"]}]
answer = client.chat_completion(messages, model=os.environ["MODEL"], max_tokens=60, response_format=form)
print(answer.choices[0].message.content)
"""


def test_an_answer_by_a_schema(server: Server, run: Run) -> None:
    printed = run(of_clients("python"), "-c", PROGRAM, BASE=server.url, KEY=KEY, MODEL=MODEL, PERSON=PERSON,
                  SCHEMA=json.dumps(Person.model_json_schema()))  # fmt: skip

    assert Person.model_validate_json(printed)
