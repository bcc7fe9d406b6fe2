"""The help of the command line: options in sections, commands by what they are for, and errors as sentences."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, ClassVar, NoReturn

import click

from corosrv.base.errors import CorosrvError

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
    "sampler": "Samplers that few use, where a request does not say it",
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
