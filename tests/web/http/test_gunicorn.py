"""Names of gunicorn and gevent that corosrv replaces are there, and docs/gunicorn.md lists them."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from corosrv.web.http import connection, front, listener, message, served_client, worker_watch
from tests.test_layers import MODULES, ROOT

PAGE = (ROOT / "docs" / "gunicorn.md").read_text()
HOMES = (connection, front, listener, message, served_client, worker_watch)

# The methods and attributes of gunicorn's and gevent's classes that these classes replace.
REPLACED = {
    "Front": {
        "handle_abort", "handle_exit", "handle_quit", "handle_request", "init_process", "init_signals", "notify",
        "patch", "run",
    },
    "PacedUnreader": {"chunk", "max_body_chunk"},
    "_ClientParser": {"mesg_class"},
    "ClientRequest": {"_peer_is_trusted_proxy", "parse"},
    "BoundedChunks": {"parse_chunk_size"},
    "PromptLengthReader": {"read"},
    "HttpResponse": {"close", "default_headers", "send_headers", "should_close", "write"},
    "UnloggedResponse": set(),
    "JsonLogger": {"setup"},
    "ClientPool": {"__len__", "_discard"},
    "PatientSocket": {"_wait", "sendall"},
    "Listener": {"close", "do_handle", "do_read", "max_accept", "wrap_socket_and_handle"},
}  # fmt: skip

# What corosrv imports of gunicorn. A name that begins with an underscore may go with any release.
IMPORTED = {
    "gunicorn.sock", "gunicorn.app.base.BaseApplication", "gunicorn.config.PostRequest", "gunicorn.config.PreRequest",
    "gunicorn.errors.HaltServer",
    "gunicorn.glogging.Logger",
    "gunicorn.http.body.ChunkedReader", "gunicorn.http.body.EOFReader", "gunicorn.http.body.LengthReader",
    "gunicorn.http.errors", "gunicorn.http.errors.InvalidChunkSize", "gunicorn.http.errors.InvalidRequestLine",
    "gunicorn.http.errors.LimitRequestHeaders", "gunicorn.http.errors.NoMoreData",
    "gunicorn.http.errors.ParseException", "gunicorn.http.errors.UnsupportedTransferCoding",
    "gunicorn.http.message.Request", "gunicorn.http.message._ip_in_allow_list", "gunicorn.http.parser.Parser",
    "gunicorn.http.unreader.SocketUnreader",
    "gunicorn.http.wsgi", "gunicorn.http.wsgi.Response", "gunicorn.http.wsgi.WSGIErrorsWrapper",
    "gunicorn.http2.negotiation", "gunicorn.systemd.sd_notify",
    "gunicorn.util.http_date", "gunicorn.util.parse_address",
    "gunicorn.workers.base.Worker", "gunicorn.workers.ggevent.GeventWorker",
}  # fmt: skip


def is_foreign(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ("gunicorn", "gevent")


def replaced() -> dict[str, set[str]]:
    found = {}
    for home in HOMES:
        for name, kind in vars(home).items():
            if isinstance(kind, type) and kind.__module__ == home.__name__ and any(map(is_foreign, kind.__mro__)):
                foreign = set().union(*(vars(base) for base in kind.__mro__ if is_foreign(base)))
                own = {word for word in vars(kind) if not word.startswith("__") or word == "__len__"}
                found[name] = own & foreign
    return found


def imported(path: Path) -> set[str]:
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gunicorn"
        for alias in node.names
    }


def test_each_replaced_method_is_one_of_the_class_that_it_stands_for():
    assert replaced() == REPLACED


def test_what_is_imported_of_gunicorn_is_listed():
    assert set().union(*map(imported, MODULES.values())) == IMPORTED


@pytest.mark.parametrize("name", sorted(IMPORTED))
def test_what_is_imported_of_gunicorn_is_there(name: str):
    module, _, word = name.rpartition(".")

    assert hasattr(importlib.import_module(module), word) or importlib.import_module(name)


def test_the_attributes_of_a_worker_that_a_front_uses_are_there():
    from gunicorn.config import Config
    from gunicorn.workers.ggevent import GeventWorker

    worker = GeventWorker(1, 1, [], None, 30, Config(), None)
    worker.tmp.close()

    used = {"alive", "cfg", "log", "max_requests", "nr", "sockets", "worker_connections"}
    assert used <= {*vars(worker), *dir(worker)}


@pytest.mark.parametrize("name", [name for name in REPLACED if REPLACED[name] and not name.startswith("_")])
def test_the_page_names_each_class_and_what_it_replaces_of_the_worker(name: str):
    assert f"`{name}`" in PAGE or f"front.{name}`" in PAGE
    if name == "Front":
        assert {word for word in REPLACED[name] if f"`{word}`" not in PAGE} == set()


def test_a_worker_looks_once_for_listeners_of_gevent_s_among_the_installed_packages():
    program = """
from importlib import metadata
from corosrv.web.http.front import Front

find, looks = metadata.distributions, []
metadata.distributions = lambda **which: looks.append(1) or find(**which)
worker = Front.__new__(Front)
worker.sockets = []
worker.patch()
import gevent.monkey
print(len(looks), gevent.monkey.is_module_patched("socket"), metadata.entry_points.__name__)
"""
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert printed.stdout.split() == ["1", "True", "entry_points"]
