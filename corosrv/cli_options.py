"""The options of the command line: one for each setting, with llama-server's flags, and help in sections."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import click

from corosrv.base import __version__
from corosrv.base.errors import CorosrvError
from corosrv.contracts.settings import PARTS, ModelSettings, model_list, sources

CONNECTIONS = 10_000
PORT = 8080
PREDICTOR_PORT = 5000  # where clients of Cog's server look for one

# What most people decide: these are shown by --help, all others by --help-all.
COMMON = (
    "model",
    "hf_repo",
    "mmproj",
    "ctx",
    "slots",
    "gpu_layers",
    "predictor",
    "upstream",
    "host",
    "port",
    "api_keys",
    "config",
)


TITLES = {
    "": "Options",
    "standing": "Flags that stand for a setting's value",
    "llama-server": "Flags of llama-server's that have other names here, or change nothing",
    "hub": "Models of a hub",
    "slot": "Slots, memory and steps",
    "draft": "A draft model",
    "encoder": "Images, of one model",
    "grammar": "Limits of grammars",
    "placement": "Devices, precision and positions",
    "access": "Who may call",
    "limit": "Limits of requests",
    "endpoint": "Endpoints",
    "image": "Images",
    "sampling": "Answers whose request does not say it",
    "prediction": "Predictor",
    "app": "Application",
    "operator": "Management",
    "kserve": "KServe's v2 protocol",
    "upstream": "Upstreams",
    "peer": "Peers",
}


def fail(message: str) -> NoReturn:
    """Ends the command with a sentence and status 1."""
    click.echo(f"corosrv: {message}", err=True)
    sys.exit(1)


class SectionOption(click.Option):
    """An option that is shown in a section of the help."""

    def __init__(self, *arguments: Any, section: str = "", **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.section = section


PASSED_ON = "corosrv.passed_on"  # in a context's meta: the arguments behind `--`, which are gunicorn's


class SectionedHelp(click.Command):
    """A command whose --help shows the options that most people need, and --help-all every one, by sections."""

    _all = "corosrv.help_all"  # in a context's meta: all options are asked for

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        return [*super().get_params(context), self._help_all]

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if "--" in args:  # what stands behind is another program's
            at = args.index("--")
            context.meta[PASSED_ON] = args[at + 1 :]
            args = args[:at]
        if any(option.name == "slots_endpoint" for option in self.params):
            args = _with_slots_endpoint(args)
        return super().parse_args(context, args)

    @functools.cached_property
    def _help_all(self) -> click.Option:
        def show(context: click.Context, option: click.Parameter, is_asked: bool) -> None:
            if is_asked and not context.resilient_parsing:
                context.meta[self._all] = True
                click.echo(context.get_help())
                context.exit()

        return SectionOption(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show,
            help="Show all options and exit.",
        )  # fmt: skip

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        options = [option for option in self.get_params(context) if isinstance(option, click.Option)]
        sections: dict[str, list[click.Option]] = {}
        if context.meta.get(self._all):
            for option in options:
                sections.setdefault(getattr(option, "section", ""), []).append(option)
            plain = sections.pop("", [])
        else:
            plain = [option for option in options if not getattr(option, "section", "") or option.name in COMMON]
            plain.sort(key=lambda option: COMMON.index(option.name) if option.name in COMMON else len(COMMON))
        for title, members in [("", plain), *sections.items()]:
            with formatter.section(TITLES.get(title, title.capitalize())):
                formatter.write_dl([record for option in members if (record := option.get_help_record(context))])


def _with_slots_endpoint(args: list[str]) -> list[str]:
    """Writes --slots-endpoint for a --slots without a number, which is llama-server's switch for GET /slots."""
    followers = [*args[1:], "--"]
    return [
        "--slots-endpoint" if arg == "--slots" and _is_flag(follower) else arg
        for arg, follower in zip(args, followers, strict=False)
    ]


def _is_flag(arg: str) -> bool:
    return arg.startswith("-") and not arg[1:].isdecimal()


class SectionedGroup(SectionedHelp, click.Group):
    """A group of commands whose own options are shown so."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(context, formatter)
        self.format_commands(context, formatter)


class CommandGroup(click.Group):
    """A group whose help lists its commands by what they are for, and which imports a command when it is asked for."""

    sections: ClassVar[dict[str, tuple[str, ...]]] = {
        "Serve": ("serve", "config", "doctor", "models"),
        "Use a server": ("chat", "batch", "top", "bench"),
        "Operate a server": ("keys", "replay", "ps", "scale", "drain", "worker", "upstream", "ray"),
        "Other": ("completion",),
    }
    places: ClassVar[dict[str, str]] = {
        "doctor": "corosrv.cli_models:doctor",
        "batch": "corosrv.cli_models:batch",
        "models": "corosrv.cli_models:models",
        "chat": "corosrv.client.chat:chat",
        "bench": "corosrv.client.bench.command:bench",
        "keys": "corosrv.web.key_commands:keys",
        "replay": "corosrv.models.replay:replay",
        "ps": "corosrv.web.management.commands:ps",
        "scale": "corosrv.web.management.commands:scale",
        "drain": "corosrv.web.management.commands:drain",
        "worker": "corosrv.web.management.commands:worker",
        "upstream": "corosrv.web.management.commands:upstream",
        "ray": "corosrv.fleet.ray.commands:ray_group",
    }

    def invoke(self, context: click.Context) -> Any:
        """Runs the command; an error of corosrv's own is printed as a sentence, not as a traceback."""
        try:
            return super().invoke(context)
        except CorosrvError as error:
            fail(str(error))

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*self.commands, *self.places})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in self.places and name not in self.commands:
            module, _, attribute = self.places[name].partition(":")
            self.add_command(getattr(importlib.import_module(module), attribute), name)
        return super().get_command(context, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.sections.items():
            with formatter.section(title):
                commands = ((name, self.get_command(context, name)) for name in names)
                formatter.write_dl(
                    [(name, command.get_short_help_str(limit=200)) for name, command in commands if command]
                )


def setting_options(*parts: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes an option of every setting of these parts, in their order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for part in reversed(parts):
            kinds = sources.kinds(part)
            for section in reversed(sources.sections(part)):
                for field in reversed(section.fields):
                    command = _option(field, kinds[field.name], section.title)(command)
        config = click.option(
            "--config",
            cls=SectionOption,
            type=click.Path(path_type=Path),
            help="TOML or JSON file with settings by these names",
        )
        return config(_standing(_hub_options(_llama_server_options(command))) if ModelSettings in parts else command)

    return decorate


def _standing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds flags without a value that stand for a value of a setting."""

    @functools.wraps(command)
    def with_settings(*arguments: Any, **more: Any) -> Any:
        for flag, (name, value) in _STANDING.items():
            if more.pop(flag):
                more[name] = value
        return command(*arguments, **more)

    for flag, (name, value) in _STANDING.items():
        words = f"the same as --{name.replace('_', '-')} {int(value) if isinstance(value, bool) else value}"
        flags = ["--" + flag.replace("_", "-"), *_SHORT.get(flag, ())]
        with_settings = click.option(*flags, flag, cls=SectionOption, section="standing", is_flag=True, help=words)(
            with_settings
        )
    return with_settings


def _llama_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
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


def _hub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds llama-server's flags for models of a hub, which stand for settings."""

    @functools.wraps(command)
    def with_settings(*arguments: Any, hf_repo: str | None, hf_file: str | None, **more: Any) -> Any:
        if hf_repo is not None:
            if more.get("model") is not None:
                fail("--hf-repo and --model name a model each: several are --model NAME=hf:OWNER/REPO:Q4_K_M")
            more["model"] = _hub_model(hf_repo, hf_file)
        elif hf_file is not None:
            fail("--hf-file names a file of a repository: add --hf-repo OWNER/REPO")
        return command(*arguments, **more)

    for option in (
        click.option(
            "-hff",
            "--hf-file",
            cls=SectionOption,
            section="hub",
            help="file of that repository, instead of a quantisation",
        ),
        click.option(
            "-hf",
            "-hfr",
            "--hf-repo",
            cls=SectionOption,
            section="hub",
            help="OWNER/REPO:Q4_K_M, the same as --model hf:OWNER/REPO:Q4_K_M",
        ),
    ):
        with_settings = option(with_settings)
    return with_settings


def _hub_model(repo: str, file: str | None) -> str:
    if file is None:
        return model_list.HUB + repo.removeprefix(model_list.HUB)
    name = model_list.parse_hub_name(repo)
    revision = "" if name.revision == "main" else f"@{name.revision.replace('/', '%2F')}"
    return f"{model_list.HUB}{name.repo}{revision}/{file}"


def _option(field: Field[Any], kind: type, section: str) -> Callable[..., Any]:
    flags = ["--" + field.name.replace("_", "-"), *_SHORT.get(field.name, ())]
    text = f"{field.metadata['help']} [{sources.PREFIX}{field.name.upper()}; {field.default!r}]"
    more: dict[str, Any] = {}
    if (join := _JOINERS.get(field.name)) is not None:
        more = {"multiple": True, "callback": _joined(join)}
    if kind is bool:  # a flag alone is true, as if 1 stood behind it
        more = {"is_flag": False, "flag_value": True}
    elif field.name in _ALONE:
        more = {"is_flag": False, "flag_value": _ALONE[field.name]}
    shown_type = click.BOOL if kind is bool else kind
    return click.option(
        *flags, field.name, cls=SectionOption, section=section, type=shown_type, default=None, help=text, **more
    )


# Other flags of settings; most are llama-server's.
_SHORT = {
    "workers": ("-w",),
    "peers": ("--peer",),
    "model": ("-m",),
    "model_alias": ("-a", "--alias"),
    "mmproj": ("-mm",),
    "model_draft": ("-md",),
    "ctx_draft": ("-cd", "--ctx-size-draft"),
    "speculation": ("--draft-max", "--draft", "--draft-n"),
    "reasoning": ("-rea",),
    "ctx": ("-c", "--ctx-size"),
    "slots": ("-np", "--parallel"),
    "threads": ("-t",),
    "n_predict": ("-n", "--predict"),
    "api_keys": ("--api-key",),
    "temp": ("--temperature",),
    "seed": ("-s",),
    "gpu_layers": ("-ngl", "--n-gpu-layers"),
    "device": ("-dev",),
    "split_mode": ("-sm",),
    "tensor_split": ("-ts",),
    "main_gpu": ("-mg",),
    "flash_attn": ("-fa",),
    "cache_type_k": ("-ctk",),
    "cache_type_v": ("-ctv",),
    "kv_unified": ("-kvu",),
    "no_kv_unified": ("-no-kvu",),
    "no_webui": ("--no-ui",),
    "verbose": ("-v", "--log-verbose"),
    "page": ("--webui", "--ui"),
    "embeddings": ("--embedding",),
    "hf_token": ("-hft",),
    "model_idle_s": ("--sleep-idle-seconds",),
    "batch": ("-ub", "--ubatch-size", "-b", "--batch-size"),
}


# Flags that stand for a value of a setting.
_STANDING: dict[str, tuple[str, Any]] = {
    "no_mmproj": ("mmproj_auto", False),
    "no_context_shift": ("context_shift", False),
    "no_kv_unified": ("kv_unified", False),
    "no_mmap": ("mmap", False),
    "no_slots": ("slots_endpoint", False),
    "no_webui": ("page", False),
    "verbose": ("log_level", "debug"),
}

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
_ALONE = {"flash_attn": "on", "access_log": "1"}

# Settings whose flag may be given several times, and what makes one text of them, as the environment has it.
_JOINERS: dict[str, Callable[[Sequence[str]], str]] = {
    "model": model_list.join,
    "upstream": " ".join,
    "peers": " ".join,
}


def _joined(join: Callable[[Sequence[str]], str]) -> Callable[..., str | None]:
    def callback(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> str | None:
        return join(texts) if texts else None

    return callback


def _list_devices(context: click.Context, option: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    from corosrv.models.engine import libllama

    for device in libllama.devices():
        click.echo(f"{device.name}: {device.description}, {device.free >> 20} MiB free")
    context.exit()


def serve_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the application to serve, where to listen, and all settings."""
    options = (
        click.argument("app", required=False),
        click.option(
            "--host",
            cls=SectionOption,
            section="listening",
            default="127.0.0.1",
            show_default=True,
            help="address to listen on, or several with commas; unix:PATH is a Unix socket",
        ),
        click.option(
            "--port",
            "-p",
            cls=SectionOption,
            section="listening",
            type=click.IntRange(0, 65535),
            help=f"[{PORT}; of a predictor alone $PORT, else {PREDICTOR_PORT}]",
        ),
        click.option(
            "--connections",
            cls=SectionOption,
            section="listening",
            default=CONNECTIONS,
            show_default=True,
            type=click.IntRange(1),
            help="clients connected at once, per process",
        ),
        click.option(
            "--open",
            "is_open",
            cls=SectionOption,
            section="listening",
            is_flag=True,
            help="allow other machines to connect without an API key",
        ),
        click.option(
            "--certfile",
            "--ssl-cert-file",
            "certfile",
            cls=SectionOption,
            section="listening",
            help="certificate in PEM, with which the server speaks TLS; loaded anew when the file changes",
        ),
        click.option(
            "--keyfile",
            "--ssl-key-file",
            "keyfile",
            cls=SectionOption,
            section="listening",
            help="its key in PEM, unless the certificate's file holds it as well",
        ),
        setting_options(*PARTS),
        click.version_option(__version__, prog_name="corosrv", cls=SectionOption, section="listening"),
        click.option(
            "--list-devices",
            cls=SectionOption,
            section="placement",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_list_devices,
            help="Show the devices for --device and exit.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
