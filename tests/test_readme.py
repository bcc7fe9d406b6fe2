"""Runs what README and guide tell people to type, as it stands there; only ports and made-up model paths differ."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.serve.server import free_port
from tests.support import projector
from tests.support.engines import packaged_model
from tests.support.hub_server import Repo, hub_server

REPOSITORY = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs" / "guide").glob("*.md"))]
# README repeats a few blocks of the guide.
BLOCKS = dict.fromkeys(
    block for page in PAGES for block in re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.DOTALL)
)
# `make test` is what runs this.
SERVERS = [
    "make run",
    "corosrv serve --model path/to/model.gguf --ctx 8192 --slots 16",
    "corosrv serve --ctx 512 --context-shift",
    "corosrv serve --slots 32 --ctx 1024 --kv-unified",
    "corosrv serve --model small=small.gguf --model 'big=big.gguf?ctx=8192&slots=4'",
    "corosrv serve --predictor deploy/predictor/predict.py:Predictor",
    "corosrv serve deploy/app/typed.py:app --workers 2",
    "gunicorn -k gevent corosrv.app",
    "corosrv serve -w 4",
    "corosrv serve --access-log text",
    "gunicorn -k gevent -w 4 corosrv.app",
]
UPSTREAMS = (
    "corosrv serve --upstream http://10.0.0.1:8080 --upstream 'http://10.0.0.2:8000?concurrency=64&model=llama-70b'"
)
PEERS = "corosrv serve deploy/app/basic.py:app --peer http://10.0.0.2:8080 --peer-token one-secret-for-all"
IMAGES = "corosrv serve --model path/to/model.gguf --mmproj path/to/mmproj.gguf"
HUB = "corosrv serve -hf ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"
CONFIG = "corosrv config --model path/to/model.gguf --slots 16"
# Followed elsewhere in tests: of listening, of the access log and traces, of Prometheus' files, of replays, of batches,
# of workers that join, of Ray, of models with sampling of their own.
# `make dist` tries the wheel of a release itself.
ELSEWHERE = [
    "corosrv serve --certfile certificate.pem --keyfile key.pem",
    "corosrv serve --host unix:/run/corosrv/http.sock,127.0.0.1",
    "corosrv serve --joinable --host 0.0.0.0 --mgmt-host 0.0.0.0 --mgmt-port 8079 --mgmt-token-file token "
    "--mgmt-certfile front.pem --mgmt-keyfile front.key",
    "corosrv worker basic.py:app --join https://front:8079 --token-file token",
    "make dist",
    "pip install dist/corosrv-*.whl",
    "pip install 'corosrv[otel]'",
    "pip install 'corosrv[mcp]'",
    "COROSRV_MCP_SERVERS=https://mcp.example.com/mcp,calc=http://127.0.0.1:9000/mcp corosrv serve",
    "pip install 'corosrv[ray]'",
    "ray start --head",
    "corosrv ray up cluster.toml",
    "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 corosrv serve --traces",
    "COROSRV_ACCESS_LOG=json gunicorn -k gevent corosrv.app",
    "corosrv serve -- --max-requests 100000 --forwarded-allow-ips 10.0.0.1",
    "prometheus --config.file=deploy/prometheus/scrape.yaml",
    "corosrv serve --record /var/lib/corosrv/engine.rec",
    "corosrv replay /var/lib/corosrv/engine.rec.crashed-4711 --steps --until 1204",
    "corosrv serve --files-path /var/lib/corosrv/files",
    "corosrv batch requests.jsonl answers.jsonl --model path/to/model.gguf",
    "corosrv serve --top-p 0.9 --model 'exact=big.gguf?temp=0' --model 'free=small.gguf?temp=1&top_k=100&seed=3'",
]
KEYS = [
    "corosrv keys add alice --file keys.toml --requests-per-minute 60 --tokens-per-day 200000",
    "corosrv serve --api-keys-file keys.toml",
    "corosrv keys list --file keys.toml",
    "corosrv keys remove alice --file keys.toml",
]
DEADLINE = 100.0  # seconds

pytestmark = [pytest.mark.model, pytest.mark.slow]


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def block(language: str, holds: str) -> str:
    (found,) = [text for text in blocks(language) if holds in text]
    return found


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small engine, so that the machine's memory is not what is tested."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COROSRV_")}
    return kept | {
        "COROSRV_PROMPT_EMBEDS": "1",  # as `make run` sets it
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "COROSRV_SLOTS": "4",
        "COROSRV_THREADS": "1",  # two wait for each other where others compute too
        "COROSRV_CTX": "512",
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }


@contextmanager
def running(command: str, port: int, environ: dict[str, str], path: str = "/health") -> Iterator[None]:
    """A server that a shell command starts, ready; ended with everything that the command started."""
    process = subprocess.Popen(
        ["sh", "-c", f"exec {command}"], cwd=REPOSITORY, env=environ, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}{path}", process)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_healthy(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended at once"
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    pytest.fail(f"not healthy within {DEADLINE:g} s")


@pytest.fixture(scope="module")
def port(environ: dict[str, str]) -> Iterator[int]:
    """Serves the snippets; returns where the first command's server listens."""
    port = free_port()
    with running(f"corosrv serve --port {port}", port, environ):
        yield port


def test_every_command_is_known_to_these_tests() -> None:
    commands = {line for text in blocks("sh") for line in text.splitlines() if not text.startswith("curl")}

    assert sorted(commands) == sorted(["make test", UPSTREAMS, PEERS, IMAGES, HUB, CONFIG, *KEYS, *ELSEWHERE, *SERVERS])


def test_the_hub_s_command_serves_what_it_downloads(environ: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    port = free_port()
    with hub_server() as hub:
        hub.repos["ggml-org/gemma-3-4b-it-GGUF"] = Repo({"gemma-Q4_K_M.gguf": Path(packaged_model()).read_bytes()})
        with running(f"{HUB} --port {port}", port, environ | hub.environ(tmp_path)):
            (model,) = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models"))["data"]

    assert model["id"] == "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"


def test_the_commands_about_keys_give_a_user_a_key_and_take_it_away(environ: dict[str, str], tmp_path: Path) -> None:
    add, serve, show, remove = (command.replace("keys.toml", str(tmp_path / "keys.toml")) for command in KEYS)

    def run(command: str) -> str:
        ended = subprocess.run(command.split(), env=environ, capture_output=True, text=True, timeout=60, check=True)
        return ended.stdout.strip()

    key, port = run(add), free_port()
    headers = {"Authorization": f"Bearer {key}"}
    with running(f"{serve} --port {port}", port, environ):
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers=headers), timeout=30
        ) as answer:
            assert answer.status == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "60"
        assert run(show) == "alice  requests_per_minute=60  tokens_per_day=200000"
        run(remove)
        assert run(show) == "there is no key in it"


@pytest.mark.parametrize("command", SERVERS)
def test_a_command_serves(command: str, environ: dict[str, str]) -> None:
    port = free_port()
    if command == "make run":
        # In the environment that the tests run in, which `make` finds installed.
        command = f"make run PORT={port} VENV={Path(sys.prefix)}"
        if not (Path(sys.prefix) / ".installed").exists():
            pytest.skip("the tests were not started by `make test`")
    elif command.startswith("corosrv serve"):
        command = re.sub(r"[\w/]+\.gguf", packaged_model(), command) + f" --port {port}"
        command = command.replace("--ctx 8192 --slots 16", "--ctx 8192 --slots 2")
    chosen = environ | {"GUNICORN_CMD_ARGS": f"-b 127.0.0.1:{port} --no-control-socket"}
    if "--predictor" in command:
        del chosen["COROSRV_SLOTS"]  # would be the predictor's

    with running(command, port, chosen):
        pass


def test_the_command_of_settings_shows_where_they_come_from(environ: dict[str, str]) -> None:
    command = CONFIG.replace("path/to/model.gguf", packaged_model())

    shown = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE, check=True, env=environ
    )

    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["slots", "16", "command", "line"] in rows
    assert ["ctx", "512", "environment", "COROSRV_CTX"] in rows


def test_the_command_of_upstreams_serves(port: int, environ: dict[str, str]) -> None:
    front = free_port()
    command = re.sub(r"http://10\.0\.0\.\d:\d+", f"http://127.0.0.1:{port}", UPSTREAMS)

    with running(f"{command} --port {front}", front, environ):
        pass


def test_the_command_of_peers_serves(port: int, environ: dict[str, str]) -> None:
    own_port = free_port()
    command = PEERS.replace("http://10.0.0.2:8080", f"http://127.0.0.1:{port}")

    with running(f"{command} --port {own_port}", own_port, environ):
        pass


def test_the_curl_command_streams(port: int) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = block("sh", "Name three rivers").replace(":8080", f":{port}")

    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE, check=True)

    assert answer.stdout.startswith("data: ")
    assert answer.stdout.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("marker", ["Name three rivers", '"forkable": True'], ids=["openai", "forks"])
def test_a_snippet_prints_an_answer(port: int, marker: str) -> None:
    program = block("python", marker).replace(":8080", f":{port}")

    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True
    )

    assert answer.stdout.strip()


def test_the_snippet_of_conversations_prints_all_its_items(port: int) -> None:
    begin = f"from openai import OpenAI\nclient = OpenAI(base_url='http://127.0.0.1:{port}/v1', api_key='none')\n"
    program = begin + block("python", "conversations.create")

    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True
    )

    assert answer.stdout.startswith("user My name is Ann.\nuser What is my name?\nassistant ")


def test_the_snippet_of_rows_prints_an_answer(port: int) -> None:
    program = block("python", "prompt_embeds").replace(":8080", f":{port}")

    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True
    )

    assert json.loads(answer.stdout)["usage"]["prompt_tokens"] == 4


@pytest.mark.timeout(400)
def test_images_are_answered_by_curl_and_by_the_example(environ: dict[str, str], tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    pillow.new("RGB", (80, 60), (30, 200, 30)).save(tmp_path / "photo.jpg")
    mmproj = projector.write_mlp(tmp_path / "mmproj.gguf", n_embd=576)
    command = IMAGES.replace("path/to/model.gguf", packaged_model()).replace("path/to/mmproj.gguf", str(mmproj))
    port = free_port()
    curl = block("sh", "data:image/png").replace(":8080", f":{port}")
    chosen = environ | {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "COROSRV_ENCODER_NICE": "0"}
    example = REPOSITORY / "deploy" / "images" / "describe.py"

    with running(f"{command} --port {port}", port, chosen):
        by_curl, by_example = (
            subprocess.run(
                words, capture_output=True, text=True, timeout=3 * DEADLINE, check=True, env=chosen, cwd=tmp_path
            )
            for words in (["sh", "-c", curl], [sys.executable, str(example), "photo.jpg"])
        )

    assert json.loads(by_curl.stdout)["usage"]["completion_tokens"] > 0
    assert by_example.stdout.startswith("photo.jpg ")
    assert example.read_text().endswith(block("python", "image_url"))


def test_the_rollout_snippet_reports_what_came_of_its_prompts(environ: dict[str, str]) -> None:
    port = free_port()
    program = block("python", "rollout(").replace(":8080", f":{port}")

    with running(f"corosrv serve --model synthetic: --port {port}", port, environ):
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True
        )

    assert re.search(r"^\d+ groups submitted: ([5-9]|1\d) complete, \d+ partial, 0 lost", ended.stdout), ended.stdout


def test_the_mount_snippet_answers_under_its_prefix(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "readme_app.py").write_text(block("python", "register_blueprint"))
    port = free_port()
    command = f"gunicorn -k gevent --no-control-socket -b 127.0.0.1:{port} --pythonpath {tmp_path} readme_app:app"

    with running(command, port, environ, path="/llm/health"):
        pass


def test_the_engine_snippet_prints_an_answer(environ: dict[str, str]) -> None:
    program = block("python", "engine.submit")

    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE, check=True, env=environ
    )

    assert answer.stdout.strip()


def test_the_predictor_is_the_example() -> None:
    example = (REPOSITORY / "deploy/predictor/predict.py").read_text()

    assert example.endswith(block("python", "BasePredictor"))


def test_the_handler_answers_the_call_of_its_page(environ: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / "typed.py").write_text(block("python", "def scale("))
    port = free_port()
    curl = block("sh", "models/scale/infer").replace(":8080", f":{port}")

    with running(f"corosrv serve {tmp_path}/typed.py:app --port {port}", port, environ):
        answer = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=DEADLINE, check=True)

    (output,) = json.loads(answer.stdout)["outputs"]
    assert output["data"] == [2, 4, 6]


def test_doctor_finds_nothing_fatal(environ: dict[str, str]) -> None:
    answer = subprocess.run(
        [BIN / "corosrv", "doctor", "--port", str(free_port())], capture_output=True, text=True, timeout=DEADLINE,
        check=False, env=environ,
    )  # fmt: skip

    assert answer.returncode == 0, answer.stdout
