"""llama-server's flags that are no settings' own: translated, always so, without effect here, or refused in words."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from corosrv.cli_help import SectionOption, fail
from corosrv.contracts.jobs import sampler_names


def llama_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds llama-server's flags that are written otherwise here, change nothing, or are refused with what to do."""

    @functools.wraps(command)
    def with_settings(*arguments: Any, **more: Any) -> Any:
        for name, (_, _, _, settings_of) in _WRITTEN_OTHERWISE.items():
            value = more.pop(name)
            if value is None or value is False or value == ():
                continue
            for setting, translated in settings_of(value).items():
                is_joined = setting == "template_arguments" and more.get(setting)
                more[setting] = _both(more[setting], translated) if is_joined else translated
        return command(*arguments, **more)

    option = functools.partial(click.option, cls=SectionOption, section="llama-server")
    for lines, words in _REFUSED.items():
        for line in lines.split(", "):
            with_settings = option(
                *_flags(line), callback=_refusing(words), expose_value=False, hidden=True, **_kind(line)
            )(with_settings)
    for lines, words in _UNUSED.items():
        for number, line in enumerate(lines.split(", ")):
            with_settings = option(
                *_flags(line),
                callback=_noting(words),
                expose_value=False,
                hidden=number > 0,  # one flag for each reason
                help=f"changes nothing: {words}",
                **_kind(line),
            )(with_settings)
    with_settings = option(*_ALWAYS, is_flag=True, expose_value=False, help="change nothing: always so")(with_settings)
    for name, (line, kind, words, _) in _WRITTEN_OTHERWISE.items():
        how = _kind(line) | ({} if kind is None else {"type": kind})
        with_settings = option(*_flags(line), name, help=words, **how)(with_settings)
    return with_settings


def _flags(line: str) -> list[str]:
    return [word for word in line.split() if word.startswith("-")]


def _kind(line: str) -> dict[str, Any]:
    """Returns how an option is made; `line`: its flags, its values if any, and dots if it may come several times."""
    values = [word for word in line.removesuffix(" ...").split() if not word.startswith("-")]
    if not values:
        return {"is_flag": True}
    return {"metavar": " ".join(values), "nargs": len(values), "multiple": line.endswith(" ...")}


def _refusing(words: str) -> Callable[..., None]:
    def callback(context: click.Context, option: click.Parameter, value: object) -> None:
        if value and not context.resilient_parsing:
            fail(f"{max(option.opts, key=len)} is not taken here: {words}")

    return callback


def _noting(words: str) -> Callable[..., None]:
    def callback(context: click.Context, option: click.Parameter, value: object) -> None:
        if value and not context.resilient_parsing:
            click.echo(f"corosrv: {max(option.opts, key=len)} changes nothing here: {words}", err=True)

    return callback


def _cache_bytes(mib: int) -> dict[str, Any]:
    if mib < 0:
        fail("--cache-ram -1: the cache has a bound here: write how many MiB, or leave it out")
    return {"cache_bytes": mib << 20}


def _time_limits(seconds: float) -> dict[str, Any]:
    return {"body_timeout_s": seconds, "write_timeout_s": seconds}


def _both(first: str, second: str) -> str:
    return json.dumps({**json.loads(first), **json.loads(second)})


def _template_arguments(text: str) -> dict[str, Any]:
    """Reads arguments of the chat template. One of them is another setting."""
    try:
        arguments = json.loads(text)
    except ValueError as error:
        fail(f"--chat-template-kwargs must be a JSON object: {error}")
    if not isinstance(arguments, dict):
        fail("--chat-template-kwargs must be a JSON object")
    reasoning = {}
    if isinstance(arguments.get("enable_thinking"), bool):
        reasoning = {"reasoning": "on" if arguments.pop("enable_thinking") else "off"}
    return reasoning | _arguments(arguments)


def _arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"template_arguments": json.dumps(arguments)} if arguments else {}


def _effort(level: str) -> dict[str, Any]:
    return {} if level == "default" else _arguments({"reasoning_effort": level})


def _kept_thoughts(is_kept: bool) -> dict[str, Any]:
    """Returns the arguments by which templates keep or drop earlier thoughts: all names, as llama-server sends them."""
    dropping = dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not is_kept)
    return _arguments({"preserve_thinking": is_kept, **dropping})


def _fitted(text: str) -> dict[str, Any]:
    if text == "off":
        fail("--fit off is not taken here: only slots and context that are not set are fitted: set --slots and --ctx")
    return {}


def _load_mode(mode: str) -> dict[str, Any]:
    if mode == "dio":
        fail("--load-mode dio is not taken here: --mmap 0 reads the weights into memory, through the system's cache")
    return {} if mode == "auto" else {"mmap": "mmap" in mode, "mlock": "mlock" in mode}


def _log_level(verbosity: int) -> dict[str, Any]:
    return {"log_level": "warning" if verbosity < 3 else "info" if verbosity == 3 else "debug"}


def _samplers(letters: str) -> dict[str, Any]:
    try:
        return {"samplers": ";".join(sampler_names(letters))}
    except ValueError as error:
        fail(f"--sampling-seq: {error}")


def _breakers(texts: Sequence[str]) -> dict[str, Any]:
    return {"dry_sequence_breakers": json.dumps([_unescaped(text) for text in texts if text != "none"])}


def _stops(texts: Sequence[str]) -> dict[str, Any]:
    return {"stop": json.dumps([_unescaped(text) for text in texts])}


_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def _unescaped(text: str) -> str:
    """Reads backslashes as llama-server does."""
    return re.sub(r"""\\([nrt'"\\])""", lambda match: _ESCAPED.get(match[1], match[1]), text)


def _content_of(setting: str) -> Callable[[Path], dict[str, Any]]:
    def read(path: Path) -> dict[str, Any]:
        try:
            return {setting: path.read_text("utf-8")}
        except UnicodeDecodeError as error:
            fail(f"{path} is no text in UTF-8: {error}")

    return read


# llama-server's flags for what is always so here.
_ALWAYS = (
    "--jinja", "--cont-batching", "-cb", "--reranking", "--rerank", "--warmup", "--swa-full", "--models-autoload",
    "--cache-idle-slots", "--kv-offload", "-kvo", "--repack", "--escape", "-e", "--log-prefix",
    "--log-timestamps", "--prefill-assistant", "--no-skip-chat-parsing", "--no-agent", "-no-ag", "--no-ui-mcp-proxy",
    "--no-webui-mcp-proxy", "--no-perf", "--no-log-jsonl",
)  # fmt: skip

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

# Flags of llama-server's with the value behind them: its type, the help, and what makes settings of it.
_WRITTEN_OTHERWISE: dict[str, tuple[str, Any, str, Callable[[Any], dict[str, Any]]]] = {
    "cache_ram": ("-cram --cache-ram MIB", click.IntRange(-1), "the same as --cache-bytes, in MiB", _cache_bytes),
    "timeout": (
        "-to --timeout SECONDS", click.FloatRange(1), "the same as --body-timeout-s and --write-timeout-s", _time_limits
    ),
    "chat_template_kwargs": (
        "--chat-template-kwargs JSON", str, "the same as --template-arguments; enable_thinking: --reasoning on or off",
        _template_arguments,
    ),
    "reasoning_effort": (
        "--reasoning-effort LEVEL", str, "the same as --template-arguments '{\"reasoning_effort\": LEVEL}'", _effort
    ),
    "reasoning_preserve": (
        "--reasoning-preserve", None, "tells chat templates to keep earlier thoughts, by --template-arguments",
        _kept_thoughts,
    ),
    "no_reasoning_preserve": (
        "--no-reasoning-preserve", None, "tells them to leave these out", lambda _: _kept_thoughts(False)
    ),
    "fit": ("-fit --fit on", click.Choice(["on", "off"]), "changes nothing: what is not set is always fitted", _fitted),
    "sampling_seq": (
        "--sampling-seq --sampler-seq LETTERS", str, "the same as --samplers, by llama-server's letters", _samplers
    ),
    "dry_sequence_breaker": (
        "--dry-sequence-breaker TEXT ...", str, "one of --dry-sequence-breakers; may be given several times", _breakers
    ),
    "reverse_prompt": ("-r --reverse-prompt TEXT ...", str, "one text of --stop; may be given several times", _stops),
    "grammar_file": ("--grammar-file PATH", _FILE, "file with what --grammar says", _content_of("grammar")),
    "json_schema_file": (
        "-jf --json-schema-file PATH", _FILE, "file with what --json-schema says", _content_of("json_schema")
    ),
    "rope_scale": (
        "--rope-scale N", click.FloatRange(0.001), "the same as --rope-freq-scale 1/N",
        lambda factor: {"rope_freq_scale": 1 / factor},
    ),
    "load_mode": (
        "-lm --load-mode MODE", click.Choice(["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]),
        "the same as --mmap and --mlock", _load_mode,
    ),
    "verbosity": (
        "-lv --verbosity --log-verbosity N", int,
        "the same as --log-level: 0 to 2 is warning, 3 info, more debug", _log_level,
    ),
}  # fmt: skip

# Those that decide nothing, each with the reason.
_UNUSED = {
    "--no-warmup": "a model computes one token before it is ready",
    "-tb --threads-batch N": "--threads also compute prompts",
    "--threads-http N": "one thread answers all requests",
    "--cpu-strict N, --cpu-strict-batch N, --spec-draft-cpu-strict --cpu-strict-draft N, "
    "--spec-draft-cpu-strict-batch --cpu-strict-batch-draft N": "the system chooses the processor of each thread",
    "--prio N, --prio-batch N, --spec-draft-prio --prio-draft N, --spec-draft-prio-batch --prio-batch-draft N":
        "all threads have the priority of the process: start it with nice",
    "--poll N, --poll-batch N, --spec-draft-poll --poll-draft N, --spec-draft-poll-batch --poll-batch-draft N":
        "threads wait for each other as the machine allows",
    "--perf": "/metrics tells how long prompts and answers take",
    "-bs --backend-sampling, --spec-draft-backend-sampling, --no-spec-draft-backend-sampling":
        "tokens are drawn on the processor, those of several answers at once, of those that a GPU picks (--candidates)",
    "-ctxcp --ctx-checkpoints --swa-checkpoints N, -cms --checkpoint-min-step N, --no-cache-idle-slots":
        "--cache-bytes says how much is kept of earlier prompts",
    "-sps --slot-prompt-similarity N": "each prompt begins with the longest beginning that was computed before",
    "-dt --defrag-thold N": "the cache has no gaps that would have to be closed",
    "-nr --no-repack, --no-host": "the order of weights in memory is chosen when a model is tried for the first time",
    "--op-offload, --no-op-offload": "libllama decides which operations a device computes",
    "-lzm --lazy-mode MODE": "libllama decides which weights it reads when they are needed",
    "--mtmd-batch-max-tokens N": "images are encoded one after the other",
    "--cors-methods NAMES, --cors-headers NAMES": "pages that may call use every method and header",
    "--cors-credentials": "origins that --cors-origins gives in full may send them",
    "--log-colors WHEN": "lines of log have no colours",
    "--no-log-prefix, --no-log-timestamps": "lines of log begin with time, process and level",
    "--draft-min --draft-n-min --spec-draft-n-min N, --spec-draft-p-split --draft-p-split P":
        "guesses are made where they pay, however few they are",
    "--spec-ngram-mod-n-min N, --spec-ngram-mod-n-max N, --spec-ngram-mod-n-match N, --spec-ngram-simple-size-n N, "
    "--spec-ngram-simple-size-m N, --spec-ngram-simple-min-hits N, --spec-ngram-map-k-size-n N, "
    "--spec-ngram-map-k-size-m N, --spec-ngram-map-k-min-hits N, --spec-ngram-map-k4v-size-n N, "
    "--spec-ngram-map-k4v-size-m N, --spec-ngram-map-k4v-min-hits N, --spec-ngram-size-n N, --spec-ngram-size-m N, "
    "--spec-ngram-min-hits N": "--speculation says how many guesses are made of texts, as many as pay",
    "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl N":
        "--gpu-layers holds for the draft model as well",
    "-devd --device-draft --spec-draft-device NAMES": "--device holds for the draft model as well",
    "-td --threads-draft --spec-draft-threads N, -tbd --threads-batch-draft --spec-draft-threads-batch N":
        "--threads compute the draft model as well",
    "-ctkd --cache-type-k-draft --spec-draft-type-k TYPE": "the draft model's keys are 16-bit numbers",
    "-ctvd --cache-type-v-draft --spec-draft-type-v TYPE": "the draft model's values are 16-bit numbers",
    "--cache-reuse N": "prompts share what they begin with alike, and no more",
}  # fmt: skip

_LOADS_SAME = "-hf ggml-org/{} loads the same model"

# Those that ask for what is not done, each with what to use instead.
_REFUSED = {
    "--usage": "--help shows what most people need, --help-all everything",
    "-cl --cache-list": "corosrv models lists them",
    "--completion-bash": "corosrv completion bash writes the script",
    "-C --cpu-mask MASK, -Cr --cpu-range RANGE, -Cb --cpu-mask-batch MASK, -Crb --cpu-range-batch RANGE, "
    "-Cd --cpu-mask-draft --spec-draft-cpu-mask MASK, -Crd --cpu-range-draft --spec-draft-cpu-range RANGE, "
    "-Cbd --cpu-mask-batch-draft --spec-draft-cpu-mask-batch MASK":
        "taskset -c 0-3 corosrv serve keeps all threads on these processors",
    "--no-jinja": "chat templates are always run as Jinja; --chat-template chatml takes one of llama.cpp's by its name",
    "-nocb --no-cont-batching": "--slots 1 answers one request after the other",
    "--kv-unified-per-slot N": "--ctx N is the context of each slot; with --kv-unified one may use that of the others",
    "-fitt --fit-target MIB": "--memory-bytes says how much memory the model may take",
    "-fitc --fit-ctx N": "--ctx sets the context that must fit",
    "--no-escape": "backslashes count in --reverse-prompt and --dry-sequence-breaker: write two for one",
    "-sp --special": "texts have no control tokens; return_tokens of /completion shows their ids",
    "--spm-infill": "/infill puts prefix and suffix before the middle; /completion takes a prompt in another order",
    "--skip-chat-parsing": "/completion answers the prompt that /apply-template makes, and leaves the text as it is",
    "--no-prefill-assistant": "requests send add_generation_prompt: true, and the last message counts as a whole one",
    "-lcs --lookup-cache-static PATH, -lcd --lookup-cache-dynamic PATH":
        "--speculation 8 guesses from the prompt and the answer themselves",
    "--spec-type NAMES": "--speculation 8 guesses from the text itself, --model-draft PATH by a smaller model",
    "--spec-synth-len N, --spec-synth-rates NUMBERS": "corosrv bench measures with guesses that the model checks",
    "-hfd -hfrd --hf-repo-draft --spec-draft-hf REPO": "corosrv models pull loads it, and --model-draft names its file",
    "-otd --override-tensor-draft --spec-draft-override-tensor RULES, -cmoed --cpu-moe-draft --spec-draft-cpu-moe, "
    "-ncmoed --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe N":
        "--gpu-layers N leaves layers of both models on the processor",
    "-ot --override-tensor RULES, -cmoe --cpu-moe, -ncmoe --n-cpu-moe N, -ncffn --n-cpu-ffn N":
        "--gpu-layers N leaves whole layers on the processor",
    "-nkvo --no-kv-offload": "the cache of a layer is where the layer is: --gpu-layers N leaves some on the processor",
    "--check-tensors": "compare the SHA-256 of the file with its publisher's",
    "--override-kv VALUES": "gguf-set-metadata, of the Python package gguf, writes them into the file",
    "--rpc SERVERS": "a model is not spread over machines: serve one on each, and name the others with --peer",
    "--control-vector PATH, --control-vector-scaled PATHS, --control-vector-layer-range FIRST LAST":
        "LoRA adapters (--lora) change how a model answers",
    "--lora-init-without-apply": "--lora style.gguf:0 loads one for those requests alone that name it",
    "-mu --model-url URL, -mmu --mmproj-url URL": "load the file, and name it with --model or --mmproj; -hf loads both",
    "-dr --docker-repo REPO": "-hf loads a model of Hugging Face, --model a file",
    "-mmdev --mmproj-device NAME":
        "images are encoded on the first GPU that libmtmd finds, or by --no-mmproj-offload on the processor",
    "--video-fps N, --video-timestamp-interval N, --video-ffmpeg-dir PATH": "send the frames of a video as images",
    "--media-path PATH": "send images as data: URLs, or let them be fetched from the hosts that --image-hosts lists",
    "--reuse-port": "gunicorn's own options stand behind two dashes: corosrv serve ... -- --reuse-port",
    "--path PATH": "a web server before this one can serve files: deploy/nginx.conf is one that passes requests on",
    "--no-cors-credentials": "origins that --cors-origins gives in full may send them: write localhost or * instead",
    "--ui-config --webui-config JSON, --ui-config-file --webui-config-file PATH":
        "people set these things on the page, which keeps them; --temp and the like are defaults for all",
    "--tools NAMES, --tools-runtime NAME, -ag --agent":
        "no tool runs here but those of the MCP servers that --mcp-servers lists",
    "--ui-mcp-proxy --webui-mcp-proxy, --mcp-servers-config PATH, --mcp-servers-json JSON":
        "--mcp-servers LABEL=URL lists MCP servers whose tools requests of /v1/responses may use",
    "--log-file PATH": "standard error is the log: 2> PATH keeps it in a file",
    "--log-prompts-dir PATH": "--record PATH keeps what reaches the engine, prompts too",
    "--models-dir PATH": "name each file with --model NAME=PATH, which may be given several times",
    "--models-preset PATH": "name each file with --model 'NAME=PATH?ctx=8192', which may be given several times",
    "--models-max N": "--model-bytes says how many bytes all loaded models may take",
    "--no-models-autoload": "a model is loaded when a request names it; leave out those that shall not be",
    "--embd-gemma-default": _LOADS_SAME.format("embeddinggemma-300M-qat-q4_0-GGUF"),
    "--fim-qwen-1.5b-default": _LOADS_SAME.format("Qwen2.5-Coder-1.5B-Q8_0-GGUF"),
    "--fim-qwen-3b-default": _LOADS_SAME.format("Qwen2.5-Coder-3B-Q8_0-GGUF"),
    "--fim-qwen-7b-default, --fim-qwen-7b-spec": _LOADS_SAME.format("Qwen2.5-Coder-7B-Q8_0-GGUF"),
    "--fim-qwen-14b-spec": _LOADS_SAME.format("Qwen2.5-Coder-14B-Q8_0-GGUF"),
    "--fim-qwen-30b-default": _LOADS_SAME.format("Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF"),
    "--gpt-oss-20b-default": _LOADS_SAME.format("gpt-oss-20b-GGUF"),
    "--gpt-oss-120b-default": _LOADS_SAME.format("gpt-oss-120b-GGUF"),
    "--vision-gemma-4b-default": _LOADS_SAME.format("gemma-3-4b-it-qat-GGUF"),
    "--vision-gemma-12b-default": _LOADS_SAME.format("gemma-3-12b-it-qat-GGUF"),
}  # fmt: skip

# What a flag without a value says.
ALONE = {"flash_attn": "on", "access_log": "1"}
