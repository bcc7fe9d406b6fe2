"""The options of the command line: one for each setting, flags that stand for a value, and where to listen."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

import click

from corosrv.base import __version__
from corosrv.cli_help import SectionOption, fail
from corosrv.cli_llama_server import ALONE, llama_server_options
from corosrv.contracts.settings import PARTS, ModelSettings, model_list, sources

CONNECTIONS = 10_000
PORT = 8080
PREDICTOR_PORT = 5000  # where clients of Cog's server look for one


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
        return config(_standing(_hub_options(llama_server_options(command))) if ModelSettings in parts else command)

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

    hub = functools.partial(click.option, cls=SectionOption, section="hub")
    for option in (
        hub("-hff", "--hf-file", help="file of that repository, instead of a quantisation"),
        hub("-hf", "-hfr", "--hf-repo", help="OWNER/REPO:Q4_K_M, the same as --model hf:OWNER/REPO:Q4_K_M"),
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
    elif field.name in _AUTOMATIC:
        more = {"callback": _automatic}
    if kind is bool:  # a flag alone is true, as if 1 stood behind it
        more = {"is_flag": False, "flag_value": True}
    elif field.name in ALONE:
        more = {"is_flag": False, "flag_value": ALONE[field.name]}
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
    "model_draft": ("-md", "--spec-draft-model"),
    "ctx_draft": ("-cd", "--ctx-size-draft"),
    "speculation": ("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max"),
    "draft_p_min": ("--spec-draft-p-min",),
    "reasoning": ("-rea",),
    "lora": ("--lora-scaled",),
    "typical_p": ("--typical",),
    "top_n_sigma": ("--top-nsigma",),
    "dynatemp_exponent": ("--dynatemp-exp",),
    "mirostat_tau": ("--mirostat-ent",),
    "mirostat_eta": ("--mirostat-lr",),
    "logit_bias": ("-l",),
    "json_schema": ("-j",),
    "no_mmproj": ("--no-mmproj-auto",),
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
    "no_mmproj_offload": ("mmproj_offload", False),
    "no_context_shift": ("context_shift", False),
    "no_kv_unified": ("kv_unified", False),
    "no_mmap": ("mmap", False),
    "no_slots": ("slots_endpoint", False),
    "no_webui": ("page", False),
    "no_cache_prompt": ("cache_prompt", False),
    "spec_default": ("speculation", 16),
    "log_jsonl": ("log_format", "json"),
    "log_disable": ("log_level", "warning"),
    "verbose": ("log_level", "debug"),
}

# Settings of which llama-server's -1 means what 0 does here: as many as suit.
_AUTOMATIC = ("slots", "threads")


def _automatic(context: click.Context, option: click.Parameter, value: int | None) -> int | None:
    return 0 if value == -1 else value


# Settings whose flag may be given several times, and what makes one text of them, as the environment has it.
_JOINERS: dict[str, Callable[[Sequence[str]], str]] = {
    "model": model_list.join,
    "lora": ",".join,
    "logit_bias": ",".join,
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
    listening = functools.partial(click.option, cls=SectionOption, section="listening")
    options = (
        click.argument("app", required=False),
        listening(
            "--host",
            default="127.0.0.1",
            show_default=True,
            help="address to listen on, or several with commas; unix:PATH is a Unix socket",
        ),
        listening(
            "--port",
            "-p",
            type=click.IntRange(0, 65535),
            help=f"[{PORT}; of a predictor alone $PORT, else {PREDICTOR_PORT}]",
        ),
        listening(
            "--connections",
            default=CONNECTIONS,
            show_default=True,
            type=click.IntRange(1),
            help="clients connected at once, per process",
        ),
        listening("--open", "is_open", is_flag=True, help="allow other machines to connect without an API key"),
        listening(
            "--certfile",
            "--ssl-cert-file",
            "certfile",
            help="certificate in PEM, with which the server speaks TLS; loaded anew when the file changes",
        ),
        listening(
            "--keyfile",
            "--ssl-key-file",
            "keyfile",
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
