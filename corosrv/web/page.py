"""Serves the page at `/` and the files that it is made of.

The files stand under a name made from the contents of all of them, so that browsers may keep each for good, and a page
never mixes the files of two versions: its modules import each other by relative names. What the first paint needs
stands in the page itself: a file of its own would come later, even one that the browser has.
"""

from __future__ import annotations

import gzip
import hashlib
from base64 import b64encode
from functools import cache
from pathlib import Path

from flask import Blueprint, Response, current_app, request
from flask.blueprints import BlueprintSetupState

from corosrv.base.errors import NotFound
from corosrv.base.waits import call_in_thread
from corosrv.web.http.openapi import without_key

_FILES = Path(__file__).parent / "static" / "page"
_SHELL = "page.html"
_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "json": "application/json",
    "mjs": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
_INLINE = {"theme": "theme.js", "styles": "page.css"}  # files that stand in the page
_FOR_GOOD = "public, max-age=31536000, immutable"
_RULE = "/page/<digest>/<path:name>"
_ready: set[str] = set()  # names of files that are read and compressed


def blueprint(is_mounted: bool) -> Blueprint:
    """Serves the page's files. Somebody's own app has them only under a prefix, as it has the page."""
    routes = Blueprint("page", __name__)

    def add(setup: BlueprintSetupState) -> None:
        if not is_mounted or setup.url_prefix:
            setup.add_url_rule(_RULE, "file", without_key(show_file))

    routes.record(add)
    return routes


def page_for_people() -> Response | None:
    """Answers a request for `/` with the page, if a browser asks and the page's files are served beside it."""
    accepted = request.accept_mimetypes
    if accepted["text/html"] <= accepted["application/json"] or not _is_served_here():
        return None
    answer = _answer(_SHELL)
    answer.headers["Cache-Control"] = "no-cache"
    answer.vary.add("Accept")
    return answer


def _is_served_here() -> bool:
    assert request.url_rule is not None
    rule = request.url_rule.rule.rstrip("/") + _RULE
    return any(one.rule == rule for one in current_app.url_map.iter_rules())


def show_file(digest: str, name: str) -> Response:
    """Answers with a file of the page's present version. Raises NotFound."""
    if digest != _digest() or name not in _names():
        raise NotFound(f"the page has no file '{name[:80]}' in this version: load it again")
    answer = _answer(name)
    answer.headers["Cache-Control"] = _FOR_GOOD
    return answer


def _answer(name: str) -> Response:
    """Makes the answer with a file, compressed where the browser takes that."""
    is_packed = request.accept_encodings["gzip"] > 0
    packed, plain = _contents(name) if name in _ready else call_in_thread(_contents, name)
    answer = Response(packed if is_packed else plain, mimetype=_TYPES[name.rpartition(".")[2]])
    if is_packed:
        answer.headers["Content-Encoding"] = "gzip"
    answer.vary.add("Accept-Encoding")
    answer.headers["Content-Security-Policy"] = _policy()
    answer.headers["X-Content-Type-Options"] = "nosniff"
    answer.headers["Referrer-Policy"] = "no-referrer"
    answer.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    answer.add_etag()
    answer.make_conditional(request)
    return answer


@cache
def _contents(name: str) -> tuple[bytes, bytes]:
    """Reads a file once and compresses it, which takes some milliseconds: then packed and plain are kept."""
    data = (_FILES / name).read_bytes()
    if name == _SHELL:
        data = _fill(data.decode())
    _ready.add(name)
    return gzip.compress(data, mtime=0), data


def _fill(shell: str) -> bytes:
    """Writes the version of the files into the page, and whether there is a live picture."""
    has_live = "yes" if "live.mjs" in _names() else "no"
    filled = shell.replace("{digest}", _digest()).replace("{live}", has_live)
    for place, name in _INLINE.items():
        filled = filled.replace(f"{{{place}}}", (_FILES / name).read_text())
    return filled.encode()


@cache
def _policy() -> str:
    """Returns the policy: the page may run and call only what this server sends, and itself what its hashes name.

    It shows images that its reader has given it.
    """
    theme, styles = (b64encode(hashlib.sha256((_FILES / name).read_bytes()).digest()) for name in _INLINE.values())
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{theme.decode()}'; "
        f"style-src 'self' 'sha256-{styles.decode()}'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def _names() -> frozenset[str]:
    files = (file for file in _FILES.rglob("*") if file.suffix.lstrip(".") in _TYPES)
    return frozenset(file.relative_to(_FILES).as_posix() for file in files)


@cache
def _digest() -> str:
    """Returns a name for the contents of all files."""
    whole = hashlib.sha256()
    for name in sorted(_names()):
        data = (_FILES / name).read_bytes()
        whole.update(f"{name} {len(data)}\n".encode())
        whole.update(data)
    return whole.hexdigest()[:16]
