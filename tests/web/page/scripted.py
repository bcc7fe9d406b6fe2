"""A server of the page whose model answers what a test has written: any text, any event, any break."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flask import Blueprint, Flask, Response, jsonify, request
from werkzeug.serving import make_server

from corosrv.web import page as routes
from corosrv.web.docs import Home

BREAK = object()  # an answer that breaks off here


@dataclass
class Scripted:
    """A script of what the model says, and a record of what it was asked."""

    pieces: list[Any] = field(default_factory=lambda: ["Hello", " there"])
    pause_s: float = 0.0
    statuses: list[tuple[int, Any]] = field(default_factory=list)  # of the next answers, instead of a stream
    models: list[dict[str, Any]] = field(default_factory=lambda: [model("small"), model("large", "image")])
    upstreams: list[dict[str, Any]] = field(default_factory=list)  # of a frame of the live picture
    health: dict[str, Any] = field(default_factory=lambda: {"status": "ok", "state": "ready"})
    key: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0
    prefix: str = "/llm"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}/"

    def blueprint(self) -> Blueprint:
        api = Blueprint("api", __name__)
        api.add_url_rule("/health", view_func=self.tell_health)
        api.add_url_rule("/v1/models", view_func=self.list_models)
        api.add_url_rule("/v1/live", view_func=self.tell_frame)
        api.add_url_rule("/v1/chat/completions", view_func=self.chat, methods=["POST"])
        return api

    def tell_health(self) -> Any:
        return jsonify(self.health), 200 if self.health["status"] == "ok" else 503

    def list_models(self) -> Any:
        return self._refusal() or jsonify(data=self.models)

    def tell_frame(self) -> Any:
        return self._refusal() or jsonify(upstreams=self.upstreams)

    def chat(self) -> Any:
        self.asked.append(request.get_json())
        if refusal := self._refusal():
            return refusal
        if self.statuses:
            status, error = self.statuses.pop(0)
            return jsonify(error=error), status
        return Response(self._stream(), mimetype="text/event-stream")

    def _refusal(self) -> Any:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return jsonify(error={"message": "this server needs a key", "code": "invalid_api_key"}), 401
        return None

    def _stream(self) -> Iterator[str]:
        for piece in self.pieces:
            if piece is BREAK:
                return
            delta = {"content": piece} if isinstance(piece, str) else piece
            yield f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n"
            time.sleep(self.pause_s)
        end = {
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 5},
        }
        yield f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n"


def model(name: str, *kinds: str) -> dict[str, Any]:
    return {"id": name, "architecture": {"input_modalities": ["text", *kinds]}, "status": {"value": "loaded"}}


@contextmanager
def serve(script: Scripted) -> Iterator[Scripted]:
    """Serves the page with the script's model below the script's prefix."""
    root = Blueprint("root", __name__)
    for part in (
        script.blueprint(),
        routes.blueprint(True),
        Home(list, lambda: "ready", False).blueprint(True),
    ):
        root.register_blueprint(part)
    app = Flask(__name__, static_folder=None)
    app.register_blueprint(root, url_prefix=script.prefix)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    script.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
