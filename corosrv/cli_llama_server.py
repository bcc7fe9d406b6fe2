"""llama-server's flags that are no settings' own: translated, always so, without effect here, or refused in words."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from corosrv.cli_help import SectionOption, fail


def llama_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds llama-server's flags that are written otherwise here, change nothing, or are refused with what to do."""

    @functools.wraps(command)
    def with_settings(*arguments: Any, **more: Any) -> Any:
        for name, (_, _, _, settings_of) in _WRITTEN_OTHERWISE.items():
            if (value := more.pop(name)) is not None:
                more |= settings_of(value)
        return command(*arguments, **more)

    option = functools.partial(click.option, cls=SectionOption, section="llama-server")
    for line, words in _REFUSED.items():
        with_settings = option(*_flags(line), callback=_refusing(words), hidden=True, **_option_kind(line))(
            with_settings
        )
    for line, words in _UNUSED.items():
        with_settings = option(
            *_flags(line), callback=_noting(words), help=f"changes nothing: {words}", **_option_kind(line)
        )(with_settings)
    with_settings = option(*_ALWAYS, is_flag=True, expose_value=False, help="change nothing: always so")(with_settings)
    for name, (line, kind, words, _) in _WRITTEN_OTHERWISE.items():
        metavar = line.split()[-1]
        with_settings = option(*_flags(line), name, type=kind, metavar=metavar, help=words)(with_settings)
    return with_settings


def _flags(line: str) -> list[str]:
    return [word for word in line.split() if word.startswith("-")]


def _option_kind(line: str) -> dict[str, Any]:
    """Returns how an option is made that only says something; `line`: its flags, and behind them its value if any."""
    last = line.split()[-1]
    kind = {"is_flag": True} if last.startswith("-") else {"metavar": last}
    return {"expose_value": False, **kind}


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


def _reasoning(text: str) -> dict[str, Any]:
    """Reads arguments of the chat template. One is a setting here, the others are for requests to say."""
    try:
        arguments = json.loads(text)
    except ValueError as error:
        fail(f"--chat-template-kwargs must be a JSON object: {error}")
    match arguments:
        case {"enable_thinking": bool(is_on), **others} if not others:
            return {"reasoning": "on" if is_on else "off"}
    fail(
        "--chat-template-kwargs takes enable_thinking alone, true or false, as --reasoning on or off does: "
        "requests send others, in chat_template_kwargs"
    )


def _fitted(text: str) -> dict[str, Any]:
    if text == "off":
        fail("--fit off is not taken here: only slots and context that are not set are fitted: set --slots and --ctx")
    return {}


# llama-server's flags for what is always so here.
_ALWAYS = (
    "--jinja", "--cont-batching", "-cb", "--reranking", "--rerank", "--cache-prompt", "--warmup", "--swa-full",
    "--models-autoload",
)  # fmt: skip

# Flags of llama-server's with the value behind them: its type, the help, and what makes settings of it.
_WRITTEN_OTHERWISE: dict[str, tuple[str, Any, str, Callable[[Any], dict[str, Any]]]] = {
    "cache_ram": ("-cram --cache-ram MIB", click.IntRange(-1), "the same as --cache-bytes, in MiB", _cache_bytes),
    "timeout": (
        "-to --timeout SECONDS", click.FloatRange(1), "the same as --body-timeout-s and --write-timeout-s", _time_limits
    ),
    "chat_template_kwargs": (
        "--chat-template-kwargs JSON", str, "enable_thinking alone, which is --reasoning on or off", _reasoning
    ),
    "fit": ("-fit --fit on", click.Choice(["on", "off"]), "changes nothing: what is not set is always fitted", _fitted),
}  # fmt: skip

# Those that decide nothing, each with the reason.
_UNUSED = {
    "--no-warmup": "a model computes one token before it is ready",
    "-tb --threads-batch N": "--threads also compute prompts",
    "--threads-http N": "one thread answers all requests",
    "--draft-min --draft-n-min N": "guesses are made where they pay, however few they are",
    "-ngld --gpu-layers-draft --n-gpu-layers-draft N": "--gpu-layers holds for the draft model as well",
    "-devd --device-draft NAMES": "--device holds for the draft model as well",
    "-td --threads-draft N": "--threads compute the draft model as well",
    "-ctkd --cache-type-k-draft TYPE": "the draft model's keys are 16-bit numbers",
    "-ctvd --cache-type-v-draft TYPE": "the draft model's values are 16-bit numbers",
    "--cache-reuse N": "prompts share what they begin with alike, and no more",
}

# Those that ask for what is not done, each with what to use instead.
_REFUSED = {
    "--no-jinja": "chat templates are always run as Jinja; --chat-template chatml takes one of llama.cpp's by its name",
    "--models-dir PATH": "name each file with --model NAME=PATH, which may be given several times",
    "--models-preset PATH": "name each file with --model 'NAME=PATH?ctx=8192', which may be given several times",
    "--models-max N": "--model-bytes says how many bytes all loaded models may take",
    "--no-models-autoload": "a model is loaded when a request names it; leave out those that shall not be",
    "--ignore-eos": "requests send ignore_eos themselves",
}

# What a flag without a value says.
ALONE = {"flash_attn": "on", "access_log": "1"}
