"""The command line: what it says, refuses and hands down."""

import os
import re
import resource
import socket
import subprocess
import sys
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner, Result

import corosrv
from corosrv import cli, gunicorn_app
from corosrv.contracts import settings
from corosrv.contracts.settings import ModelSettings, ServerSettings, sources

pytestmark = pytest.mark.usefixtures("bare_environment")

FRONT = "corosrv.web.http.front.Front"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments, catch_exceptions=False)


def test_the_version_is_the_package_s():
    assert run("--version").output == f"corosrv, version {corosrv.__version__}\n"


@pytest.mark.parametrize("command", ["serve", "config", "doctor", "models"])
def test_every_setting_is_an_option_with_its_variable(command):
    words = " ".join(run(command, "--help-all").output.split())

    for field in (*fields(ModelSettings), *fields(ServerSettings)):
        assert re.search(rf"--{field.name.replace('_', '-')}[ ,]", words)  # a comma where it has other flags as well
        assert f"COROSRV_{field.name.upper()}" in words.replace(" ", "")


@pytest.mark.parametrize("command", ["serve", "config", "doctor", "models"])
def test_help_shows_few_options_and_help_all_every_one_once(command):
    few, every = (run(command, flag).output for flag in ("--help", "--help-all"))

    assert "--slots" in few
    assert "--grammar-depth" not in few
    assert len(re.findall(r"^  -", few, re.MULTILINE)) <= 16  # with --help, --help-all, and two of config's own
    assert len(re.findall(r"^ .*--slots,", every, re.MULTILINE)) == 1


def test_help_all_says_what_is_decided_where():
    sections = re.findall(r"^(\S.*):$", run("serve", "--help-all").output, re.MULTILINE)

    assert sections[:4] == ["Options", "Listening", "Flags that stand for a setting's value", "Models of a hub"]
    assert {"Model", "Slots, memory and steps", "Who may call", "Predictor", "Upstreams", "Peers"} < set(sections)


def test_no_section_of_settings_is_long():
    lengths = {section.title: len(section.fields) for part in settings.PARTS for section in sources.sections(part)}

    assert {title: n for title, n in lengths.items() if n > 20} == {}
    assert sum(lengths.values()) == sum(len(fields(part)) for part in settings.PARTS)


def test_the_command_line_imports_a_command_when_it_is_asked_for():
    program = "import sys, corosrv.cli; print(*{'asyncio', 'flask', 'gevent', 'ray'} & set(sys.modules))"

    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert shown.stdout == "\n"


def test_every_command_has_its_place_in_the_help():
    listed = [name for names in cli.CommandGroup.sections.values() for name in names]

    assert sorted(listed) == cli.main.list_commands(click.Context(cli.main))
    assert "Operate a server:" in run("--help").output


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete "), ("zsh", "compdef"), ("fish", "complete ")])
def test_completion_is_for_each_shell(shell, word):
    result = run("completion", shell)

    assert result.exit_code == 0
    assert word in result.output
    assert "_COROSRV_COMPLETE" in result.output


def test_completion_is_for_the_shell_at_hand_or_says_which_there_are(monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/zsh")
    assert "compdef" in run("completion").output
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "bash, zsh or fish" in run("completion").stderr


@pytest.mark.parametrize(
    ("chosen", "words", "absent"),
    [
        (
            {"model": "small=synthetic:", "drain_s": 7},
            ["serves small\n", "page     http://h:1/ ", "http://h:1/v1 ", "curl http://h:1/v1/chat", "end for 7 s"],
            ["Bearer", "gRPC", "predictions"],
        ),
        ({"model": "synthetic:", "api_keys": "secret", "page": False}, ["Bearer KEY"], ["secret", "page "]),
        (
            {"predictor": "predict.py:Predictor", "metrics": False},
            ["http://h:1/predictions"],
            ["/v1", "/v2", "metrics"],
        ),
        ({"worker_app": "app.py:app", "grpc_port": 9}, ["application app.py:app", "127.0.0.1:9 "], ["curl"]),
        ({"upstream": "http://a:1 http://b:1"}, ["serves 2 upstreams", "curl"], ["/v2"]),
    ],
)
def test_the_screen_of_a_start_says_what_is_served_and_where(chosen, words, absent):
    screen = gunicorn_app.start_screen(settings.load(chosen, environ={}), ["http://h:1", "http://[::1]:1"])

    assert [word for word in words if word not in screen] == []
    assert [word for word in absent if word in screen] == []
    assert "also     http://[::1]:1" in screen


def test_models_shows_the_made_up_one():
    result = run("models", "--model", "synthetic:?length=5", "--model-alias", "tiny,small")

    assert result.exit_code == 0
    assert result.output.startswith("tiny  synthetic")


def test_models_shows_that_there_is_none_beside_a_predictor(monkeypatch):
    monkeypatch.setenv("COROSRV_PREDICTOR", "predict.py:Predictor")

    assert run("models").output.startswith("no model")


def test_an_address_that_is_taken_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("serve", "--model", "synthetic:", "--port", str(taken.getsockname()[1]))

    assert result.exit_code == 1
    assert "Address already in use" in result.output


def test_models_shows_file_and_size(tmp_path):
    model = tmp_path / "small.gguf"
    model.write_bytes(b"GGUF" * 500_000)

    assert run("models", "--model", str(model)).output == f"small  2 MB  {model}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("models", "--model", "/no/such.gguf"), "does not exist"),
        (("models", "--model", "synthetic:", "--slots", "-2"), "COROSRV_SLOTS"),
        (("models", "--config", "/no/such.toml"), "cannot be read"),
        (("serve", "--model", "synthetic:?x=1"), "COROSRV_MODEL"),
        (("config", "--model", "synthetic:", "--slots", "-2"), "COROSRV_SLOTS"),
        (("config", "--upstream", "localhost:8080"), "COROSRV_UPSTREAM"),
        (("serve", "--model", "/no/such.gguf"), "does not exist"),
        (("serve", "--model", "/proc"), "is a folder"),
        (("serve", "--model", "synthetic:", "--lora", "/no/style.gguf:0.5"), "adapter /no/style.gguf does not exist"),
        (("serve", "--model", "a=synthetic:", "--model", "b=/no/such.gguf"), "does not exist"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_a_status(arguments, words):
    result = run(*arguments)

    assert result.exit_code == 1
    assert result.stderr.startswith("corosrv: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("serve", "--slots", "many"), ("serve", "--port", "70000"), ("serve", "--no-such")]
)
def test_what_click_refuses_has_its_status(arguments):
    assert run(*arguments).exit_code == 2


def test_serve_hands_its_options_to_the_workers(served, tmp_path):
    config = tmp_path / "corosrv.toml"
    config.write_text("slots = 3\n")

    result = run("serve", "--config", str(config), "--model", "synthetic:", "--metrics", "no", "--temp", "0.5")

    assert result.exit_code == 0
    handed = {name: value for name, value in os.environ.items() if name.startswith("COROSRV_")}
    assert handed == {
        "COROSRV_CONFIG": str(config),
        "COROSRV_MODEL": "synthetic:",
        "COROSRV_METRICS": "0",
        "COROSRV_TEMP": "0.5",
    }


def test_serve_starts_one_gevent_worker(served):
    run("serve", "--model", "synthetic:", "--port", "0", "--drain-s", "7.5")

    (options,) = served
    assert (options["bind"], options["workers"], options["worker_class"]) == (["127.0.0.1:0"], 1, FRONT)
    assert options["graceful_timeout"] > 7.5


@pytest.mark.parametrize(
    ("host", "bind"),
    [
        ("127.0.0.1", "127.0.0.1:8080"),
        ("localhost", "localhost:8080"),
        ("::1", "[::1]:8080"),
        ("127.0.0.1, ::1", "127.0.0.1:8080 [::1]:8080"),
    ],
)
def test_this_machine_may_ask_without_a_key(served, host, bind):
    assert run("serve", "--model", "synthetic:", "--host", host).exit_code == 0
    assert served[0]["bind"] == bind.split()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "::1,0.0.0.0"])
def test_others_may_not_ask_without_a_key_unless_told_so(served, host):
    refused = run("serve", "--model", "synthetic:", "--host", host)

    assert refused.exit_code == 1
    assert "COROSRV_API_KEYS" in refused.stderr
    assert not served
    assert run("serve", "--model", "synthetic:", "--host", host, "--open").exit_code == 0
    assert run("serve", "--model", "synthetic:", "--host", host, "--api-keys", "k").exit_code == 0


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1,no-such-host.invalid"])
def test_a_host_without_an_address_is_not_taken_for_one_that_others_reach(served, host):
    refused = run("serve", "--model", "synthetic:", "--host", host)

    assert refused.exit_code == 1
    assert "no address is known for the host no-such-host.invalid (" in refused.stderr
    assert not served


def test_several_processes_are_said_to_have_a_model_each(served):
    words = "2 worker processes, each of which loads"

    assert words not in run("serve", "--model", "synthetic:", "-w", "2").stderr
    assert words in run("serve", "--model", "synthetic:", "-w", "2", "--engine", "inproc").stderr


@pytest.mark.parametrize(("limit", "n"), [(4096, 1948), (64, 1)])
def test_a_low_limit_of_descriptors_is_said(served, monkeypatch, limit, n):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, limit))

    assert f"enough for about {n} streams" in run("serve", "--model", "synthetic:").stderr


def test_a_command_line_of_llama_server_is_understood(served, monkeypatch, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n\ntwo\n")
    line = (
        "-m synthetic: -a tiny -c 4096 -np 4 -t 2 -ngl 0 -fa on -ctk q8_0 -ctv q8_0 -b 2048 -ub 512 -n 64"
        " --sleep-idle-seconds 60"
    )

    result = run("serve", *line.split(), "--api-key-file", str(keys), "--api-key", "three")

    assert result.exit_code == 0, result.output
    loaded = corosrv.contracts.settings.load()
    (model,) = loaded.models
    assert (model.names, model.ctx, model.slots, model.threads, model.batch) == (("tiny",), 4096, 4, 2, 512)
    assert (model.gpu_layers, model.flash_attn, model.cache_type_k, model.cache_type_v) == ("0", "on", "q8_0", "q8_0")
    assert (model.n_predict, loaded.server.model_idle_s) == (64, 60)
    assert loaded.server.keys == ("three", "one", "two")


def test_flags_of_llama_server_switch_settings_off_and_say_what_is_always_so(served):
    always = "--jinja -cb --embedding --reranking --cache-prompt --warmup --swa-full --models-autoload"

    result = run("serve", *f"-m synthetic: {always} --no-mmap --no-slots --no-webui".split())

    assert (result.exit_code, result.stderr) == (0, "")
    loaded = corosrv.contracts.settings.load()
    assert (loaded.models[0].mmap, loaded.server.slots_endpoint, loaded.server.page) == (False, False, False)


def test_flags_of_llama_server_are_translated_to_settings(served):
    line = "-m synthetic: -v -to 600 -cram 256 --fit on --repeat-last-n 128 --chat-template-kwargs"

    result = run("serve", *line.split(), '{"enable_thinking": false}')

    assert (result.exit_code, result.stderr) == (0, "")
    loaded = corosrv.contracts.settings.load()
    (model,), server = loaded.models, loaded.server
    assert (model.cache_bytes, model.reasoning) == (256 << 20, "off")
    assert (server.log_level, server.body_timeout_s, server.write_timeout_s) == ("debug", 600, 600)
    assert model.repeat_last_n == 128


def test_a_draft_model_and_llama_servers_flags_for_it_are_settings(served, tmp_path):
    paths = [tmp_path / name for name in ("large.gguf", "small.gguf")]
    for path in paths:
        path.write_bytes(b"GGUF")
    result = run(
        "serve", "-m", str(paths[0]), "-md", str(paths[1]), *["-cd", "512", "--draft-max", "8", "--draft-p-min", "0.5"]
    )

    assert (result.exit_code, result.stderr) == (0, "")
    (model,) = corosrv.contracts.settings.load().models
    assert (model.model_draft, model.ctx_draft) == (str(paths[1]), 512)
    assert (model.drafted_rows, model.draft_p_min) == (8, 0.5)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--no-warmup", "computes one token"),
        ("-tb 4", "--threads-batch changes nothing here: --threads"),
        ("--threads-http 4", "one thread"),
        ("--cache-reuse 256", "begin with alike"),
        ("--draft-min 2", "where they pay"),
        ("-ngld 99", "--gpu-layers holds for the draft model"),
        ("-devd CUDA0", "--device holds for the draft model"),
        ("-td 4", "--threads compute the draft model"),
        ("-ctkd q8_0", "16-bit numbers"),
        ("-ctvd q8_0", "16-bit numbers"),
    ],
)
def test_a_flag_of_llama_server_that_changes_nothing_is_told(served, flags, words):
    result = run("serve", "-m", "synthetic:", *flags.split())

    assert (result.exit_code, len(served)) == (0, 1)
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--no-jinja", "--chat-template chatml"),
        ("--models-dir folder", "--model NAME=PATH"),
        ("--models-preset file.ini", "--model 'NAME=PATH?ctx=8192'"),
        ("--models-max 4", "--model-bytes"),
        ("--no-models-autoload", "when a request names it"),
        ("--fit off", "--slots and --ctx"),
        ("--cache-ram -1", "how many MiB"),
    ],
)
def test_a_flag_of_llama_server_that_is_not_built_is_refused_with_what_to_do(served, flags, words):
    result = run("serve", "-m", "synthetic:", *flags.split())

    assert (result.exit_code, served) == (1, [])
    assert result.stderr.startswith(f"corosrv: {flags.split()[0]}")
    assert words in result.stderr


@pytest.mark.parametrize("line", ["--slots -np 4", "-np 4 --slots", "--slots 4 --slots --cors-origins localhost"])
def test_slots_without_a_number_switches_the_endpoint_on_as_in_llama_server(served, monkeypatch, line):
    monkeypatch.setenv("COROSRV_SLOTS_ENDPOINT", "0")

    result = run("serve", "-m", "synthetic:", *line.split())

    assert result.exit_code == 0, result.output
    loaded = corosrv.contracts.settings.load()
    assert (loaded.models[0].slots, loaded.server.slots_endpoint) == (4, True)


def test_serve_shows_version_and_devices_and_starts_nothing(served):
    version, devices = run("serve", "--version"), run("serve", "--list-devices")

    assert version.output == f"corosrv, version {corosrv.__version__}\n"
    assert re.search(r"^CPU: .+, \d+ MiB free$", devices.output, re.MULTILINE)
    assert (version.exit_code, devices.exit_code, served) == (0, 0, [])


def test_answers_are_drawn_as_the_command_says_where_a_request_does_not(served):
    line = "-m synthetic: --temp 0.6 --top-k 20 --top-p 0.9 --min-p 0 --presence-penalty 1.5"

    assert run("serve", *line.split()).exit_code == 0

    (model,) = corosrv.contracts.settings.load().models
    assert (model.temp, model.top_k, model.top_p, model.min_p, model.presence_penalty) == (0.6, 20, 0.9, 0, 1.5)


@pytest.mark.parametrize("flags", ["-kvu", "--kv-unified", "--kv-unified 1", "--no-kv-unified", "-no-kvu"])
def test_a_shared_context_is_switched_by_llama_servers_flags(served, flags):
    assert run("serve", *flags.split(), "--model", "synthetic:").exit_code == 0

    assert corosrv.contracts.settings.load().models[0].kv_unified is ("no" not in flags)


def test_flash_attention_needs_no_value(served):
    assert run("serve", "--model", "synthetic:", "-fa").exit_code == 0

    assert os.environ["COROSRV_FLASH_ATTN"] == "on"


@pytest.mark.parametrize("content", [None, "", "\n \n"])
def test_a_file_of_keys_without_one_stops_the_start(served, tmp_path, content):
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_text(content)

    result = run("serve", "--model", "synthetic:", "--api-key-file", str(keys))

    assert result.exit_code != 0
    assert "COROSRV_API_KEY_FILE" in result.output
    assert not served


def test_an_upstream_that_is_no_url_is_refused_before_gunicorn_starts(served):
    result = run("serve", "--upstream", "http://127.0.0.1:8001", "--upstream", "foo")

    assert result.exit_code == 1
    assert "upstream number 2: 'foo' is no http or https URL" in result.output
    assert served == []


def test_a_grpc_port_in_use_is_refused_before_gunicorn_starts(served):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        answer = run("serve", "--model", "synthetic:", "--grpc-port", str(port))

    assert (answer.exit_code, served) == (1, [])
    assert f"127.0.0.1:{port} cannot be listened on for gRPC: Address already in use" in answer.output


def test_config_shows_what_serve_would_have_and_where_it_comes_from(monkeypatch):
    monkeypatch.setenv("COROSRV_TEMP", "0.5")
    monkeypatch.setenv("COROSRV_API_KEYS", "not-to-be-seen")

    result = run("config", "app.py:app", "--model", "synthetic:", "--slots", "3", "-p", "0")

    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["worker_app"] == ['"app.py:app"', "command", "line"]
    assert rows["slots"] == ["3", "command", "line"]
    assert rows["port"] == ["0", "command", "line"]
    assert rows["temp"] == ["0.5", "environment", "COROSRV_TEMP"]
    assert rows["api_keys"] == ["********", "environment", "COROSRV_API_KEYS"]
    assert rows["ctx"] == ["4096", "fitted"]
    assert "host" not in rows
    assert "queue" not in rows
    assert "not-to-be-seen" not in result.output


def test_config_shows_defaults_when_asked_for_all():
    rows = [line.split() for line in run("config", "--model", "synthetic:", "--all").stdout.splitlines()]

    assert ["queue", "10000", "default"] in rows
    assert ["port", "8080", "default"] in rows


def test_config_tells_the_port_of_a_predictor_alone():
    rows = [line.split() for line in run("config", "--predictor", "p.py:P", "--all").stdout.splitlines()]

    assert ["port", str(cli.PREDICTOR_PORT), "default"] in rows


def test_config_tells_of_variables_that_are_none(monkeypatch):
    monkeypatch.setenv("COROSRV_MODLE", "x.gguf")

    result = run("config", "--model", "synthetic:")

    assert result.exit_code == 0
    assert result.stderr == "corosrv: unknown setting ignored: COROSRV_MODLE (did you mean COROSRV_MODEL?)\n"


def test_config_says_why_a_model_cannot_be_fitted_and_shows_the_rest(tmp_path):
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"no model")

    result = run("config", "--model", str(model), "--queue", "5")

    assert result.exit_code == 0
    assert result.stderr.startswith("corosrv: broken.gguf ")
    assert ["queue", "5", "command", "line"] in [line.split() for line in result.stdout.splitlines()]


@pytest.mark.parametrize("form", ["toml", "json"])
def test_config_writes_a_settings_file(tmp_path, form):
    options = ("--model", "synthetic:?length=5", "--slots", "3", "--temp", "0.25", "--metrics", "0")
    file = tmp_path / f"corosrv.{form}"
    file.write_text(run("config", *options, "--format", form).stdout)

    assert settings.load(file=file) == settings.load(
        {"model": "synthetic:?length=5", "slots": 3, "temp": 0.25, "metrics": False}
    )
