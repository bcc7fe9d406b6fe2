"""Embedding rows in POST /v1/completions: answers of a real server, and what it refuses."""

from __future__ import annotations

import base64
import io
import pickle
import zipfile
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serve.server import Server, servers
from tests.support.gguf import write_llama
from tests.support.token_rows import TokenRows, token_rows

IDS = [3 + (7 * i * i + 11 * i) % 250 for i in range(120)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_llama(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@pytest.fixture(scope="module")
def rows(model: str) -> Iterator[TokenRows]:
    with token_rows(model) as table:
        yield table


@pytest.fixture(scope="module")
def tiny(model: str, cache: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the tiny model that takes rows, and bodies of 200 kB at most."""
    with servers(tmp_path_factory.mktemp("tiny"), cache) as started:
        yield started.start(
            model=model, ctx=256, slots=2, threads=1, deterministic=1, prompt_embeds=1, max_body_bytes=200_000
        )


@pytest.fixture
def client(tiny: Server) -> Iterator[openai.OpenAI]:
    with tiny.client(timeout=60) as client:
        yield client


def embeds(rows: TokenRows, ids: list[int], **changed: Any) -> dict[str, Any]:
    """Makes what a client sends in place of a prompt."""
    data = base64.b64encode(rows.data(ids)).decode()
    return {"prompt_embeds": {"dtype": "f32", "shape": [len(ids), rows.width], "data": data} | changed}


def ask(client: openai.OpenAI, prompt: Any = None, sent: Any = None, **fields: Any) -> Any:
    asked = {"model": "tiny", "max_tokens": 12, "temperature": 0} | fields
    return client.completions.create(prompt=prompt, extra_body=sent, **asked)


def refusal(client: openai.OpenAI, sent: Any, prompt: Any = None, **fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, prompt, sent, **fields)
    assert refused.value.type == "invalid_request_error"
    return refused.value.code, refused.value.param


def test_rows_of_tokens_are_answered_as_the_tokens_are(client: openai.OpenAI, rows: TokenRows):
    expected = ask(client, IDS, logprobs=5)

    answer = ask(client, sent=embeds(rows, IDS), logprobs=5)

    assert answer.choices == expected.choices
    assert answer.usage.prompt_tokens == len(IDS)
    assert answer.usage.completion_tokens == expected.usage.completion_tokens


def test_a_stream_says_the_same_and_its_usage_counts_rows(client: openai.OpenAI, rows: TokenRows):
    expected = ask(client, IDS[:30]).choices[0].text

    events = list(ask(client, sent=embeds(rows, IDS[:30]), stream=True, stream_options={"include_usage": True}))

    assert "".join(event.choices[0].text for event in events if event.choices) == expected
    assert events[-1].usage.prompt_tokens == 30


def test_rows_that_come_again_are_known(client: openai.OpenAI, rows: TokenRows):
    sent = embeds(rows, IDS[7:97])
    first = ask(client, sent=sent)

    again = ask(client, sent=sent, n=2)

    assert again.usage.prompt_tokens_details.cached_tokens > 0
    assert [choice.text for choice in again.choices] == [first.choices[0].text] * 2


def test_the_native_form_shows_no_text_for_rows(client: openai.OpenAI, rows: TokenRows):
    answer = ask(client, sent=embeds(rows, IDS[:5]) | {"verbose": True})

    assert answer.model_extra["__verbose"]["prompt"] == ""


def test_the_model_tells_which_rows_it_takes(tiny: Server, server: Server):
    status, told = tiny.get("/v1/models/tiny")
    _, others = server.get("/v1/models")

    assert status == 200
    assert told["meta"]["prompt_embeds"] == {"dtypes": ["f32", "f16", "bf16"], "n_embd": 32, "max_rows": 255}
    assert "prompt_embeds" not in others["data"][0]["meta"]


def test_a_server_that_was_not_told_to_takes_no_rows(server: Server, rows: TokenRows):
    with server.client() as client:
        assert refusal(client, embeds(rows, IDS[:2])) == ("embeds_disabled", "prompt_embeds")


def test_rows_and_a_prompt_exclude_each_other_and_one_is_needed(client: openai.OpenAI, rows: TokenRows):
    assert refusal(client, embeds(rows, IDS[:2]), prompt="Hi") == ("embeds_and_prompt", "prompt_embeds")
    assert refusal(client, {}) == ("missing_required_parameter", "prompt")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"echo": True}, "echo"), ({"echo": True, "logprobs": 1}, "echo"), ({"suffix": "."}, "suffix")],
)
def test_what_only_text_has_is_refused(client: openai.OpenAI, rows: TokenRows, fields: dict[str, Any], param: str):
    assert refusal(client, embeds(rows, IDS[:2]), **fields)[1] == param


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(["torch"]))
        archive.writestr("archive/data/0", bytes(1 << 20))
    return file.getvalue()


FILES = {"pickle": pickle.dumps(["torch"] * 40), "zip": _zip(), "npy": b"\x93NUMPY\x01\x00v\x00" + bytes(246)}


@pytest.mark.parametrize("kind", FILES)
def test_tensor_files_are_refused(client: openai.OpenAI, rows: TokenRows, kind: str):
    data = base64.b64encode(FILES[kind]).decode()

    assert refusal(client, {"prompt_embeds": data})[0] == "embeds_bad_shape"
    assert refusal(client, embeds(rows, IDS[:1], data=data))[0] == "embeds_length"
    assert refusal(client, embeds(rows, IDS[:1], dtype=kind))[0] == "embeds_bad_dtype"


def test_rows_that_are_wrong_are_refused_by_their_code(client: openai.OpenAI, rows: TokenRows):
    nan = base64.b64encode(b"\xff\xff\xff\x7f" * 32).decode()

    assert refusal(client, embeds(rows, IDS[:1], data=nan))[0] == "embeds_not_finite"
    assert refusal(client, embeds(rows, IDS[:1], data="!" * 171 + "="))[0] == "embeds_bad_base64"
    assert refusal(client, embeds(rows, IDS[:2], shape=[1, 64]))[0] == "embeds_bad_shape"
    assert refusal(client, embeds(rows, IDS[:2], shape=[256, 32]))[0] == "embeds_too_long"


def test_a_body_over_the_limit_is_refused_before_it_is_looked_at(client: openai.OpenAI, rows: TokenRows):
    with pytest.raises(openai.APIStatusError) as refused:
        ask(client, sent=embeds(rows, IDS[:1], data="A" * 200_000))

    assert refused.value.status_code == 413


def test_the_server_goes_on_after_all_of_it(tiny: Server, client: openai.OpenAI):
    assert ask(client, "Hello").usage.completion_tokens > 0
    tiny.wait_idle()
