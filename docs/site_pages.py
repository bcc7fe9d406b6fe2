"""Writes the pages of the site that are made from code, and shows links that lead out of it as names of files.

Hooks of mkdocs, which calls the functions of this module by their names; see mkdocs.yml.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from flask import Flask
from mkdocs.structure.files import File, Files

from corosrv.cli_help import TITLES
from corosrv.contracts import settings
from corosrv.contracts.settings import sources
from corosrv.serving.server import Server

_PLACES = "README|CHANGELOG|CONTRIBUTING|deploy|tests|benchmarks|native"
_OUTSIDE = re.compile(rf"\[([^\]]+)\]\((?:\.\./)+((?:{_PLACES})[^)]*)\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    files.append(File.generated(config, "all-settings.md", content="\n".join(settings_page())))
    files.append(File.generated(config, "http.md", content="\n".join(http_page())))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replaces links to files of the repository that are no pages by their names."""
    return _OUTSIDE.sub(lambda link: f"{link[1]} (`{link[2]}`)", markdown)


def settings_page() -> Iterator[str]:
    """Yields the lines of a page with every setting, by what it decides."""
    yield "# All settings\n"
    yield "Each is a flag of `corosrv serve` (`--queue-timeout-s`), a variable (`COROSRV_QUEUE_TIMEOUT_S`) and a line"
    yield "of the settings file (`queue_timeout_s`). [The settings to know](guide/settings.md) says more of some.\n"
    for part in settings.PARTS:
        for section in sources.sections(part):
            yield f"## {TITLES.get(section.title, section.title.capitalize())}\n"
            yield "| variable | meaning | default |\n| --- | --- | --- |"
            for field in section.fields:
                default = "" if field.default in ("", None) else f"`{field.default}`"
                yield f"| `{sources.PREFIX}{field.name.upper()}` | {_escaped(field.metadata['help'])} | {default} |"
            yield ""


def http_page() -> Iterator[str]:
    """Yields the lines of a page with every route of a server of models, by what it is for."""
    app = Flask("documented")
    app.register_blueprint(Server(settings.load({"model": "synthetic:"}, environ={})).make_blueprint())
    document = app.test_client().get("/openapi.json").get_json()
    routes: dict[str, list[str]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "summary" in operation:
                row = f"| `{method.upper()} {path}` | {_escaped(operation['summary'])} |"
                routes[operation["tags"][0]].append(row)
    yield "# HTTP\n"
    yield "Every route of a server of models. `GET /docs` of a server shows them with all fields, to read and to try,"
    yield "and `GET /openapi.json` is the document behind both. Servers of predictors and upstreams have more.\n"
    for tag, rows in routes.items():
        yield f"## {tag}\n\n| route | what it does |\n| --- | --- |"
        yield from rows
        yield ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
