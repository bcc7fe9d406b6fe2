"""The options of the command line: one for each setting, with llama-server's flags, and help in sections."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import click

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
    "switching off": "Flags that switch a setting off",
    "always": "Flags of llama-server's for what is always so here",
    "hub": "Models of a hub",
    "slot": "Slots, memory and steps",
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
        return config(_negations(_hub_options(_without_effect(command))) if ModelSettings in parts else command)

    return decorate


def _negations(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds flags without a value that switch settings off."""

    @functools.wraps(command)
    def with_settings(*arguments: Any, **more: Any) -> Any:
        for flag, name in _NEGATIONS.items():
            if more.pop(flag):
                more[name] = False
        return command(*arguments, **more)

    for flag, name in _NEGATIONS.items():
        words = f"the same as --{name.replace('_', '-')} 0"
        flags = ["--" + flag.replace("_", "-"), *_SHORT.get(flag, ())]
        with_settings = click.option(
            *flags, flag, cls=SectionOption, section="switching off", is_flag=True, help=words
        )(with_settings)
    return with_settings


def _without_effect(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds llama-server's flags for what is always so here."""
    return click.option(
        *_ALWAYS, cls=SectionOption, section="always", is_flag=True, expose_value=False, help="change nothing"
    )(command)


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
    "ctx": ("-c", "--ctx-size"),
    "slots": ("-np", "--parallel"),
    "threads": ("-t",),
    "n_predict": ("-n", "--predict"),
    "api_keys": ("--api-key",),
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
    "page": ("--webui", "--ui"),
    "embeddings": ("--embedding",),
    "hf_token": ("-hft",),
    "model_idle_s": ("--sleep-idle-seconds",),
    "batch": ("-ub", "--ubatch-size", "-b", "--batch-size"),
}


# Flags that switch a setting off.
_NEGATIONS = {
    "no_mmproj": "mmproj_auto",
    "no_context_shift": "context_shift",
    "no_kv_unified": "kv_unified",
    "no_mmap": "mmap",
    "no_slots": "slots_endpoint",
    "no_webui": "page",
}

# llama-server's flags for what is always so here.
_ALWAYS = ("--jinja", "--cont-batching", "-cb", "--reranking", "--rerank", "--cache-prompt")

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
    )
    for option in reversed(options):
        command = option(command)
    return command
