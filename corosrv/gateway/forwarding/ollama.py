"""Answers requests of Ollama's clients for models of upstreams, which are asked in OpenAI's API.

On a server that has models of its own as well, `OllamaForwarding.look` answers what is not for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from flask import Blueprint, Response, request

from corosrv.base.errors import NotFound, NotOffered, WorkerLost
from corosrv.contracts.jobs import ModelCard
from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, InferEnd, InferItem, InferReader
from corosrv.dialects.ollama import catalog, parse, schema
from corosrv.dialects.ollama import routes as ollama
from corosrv.dialects.ollama.answers import PullLine, Stopwatch, encode_line, error_body, loading_answer, timestamp
from corosrv.fleet.upstreams.pool import UpstreamPool
from corosrv.gateway.forwarding import ollama_bodies
from corosrv.gateway.forwarding.answers import MAX_ANSWER
from corosrv.gateway.forwarding.event_join import StreamedError
from corosrv.gateway.forwarding.forwarder import Forwarder
from corosrv.gateway.forwarding.grouped import EVENT_STREAM, OF_THE_FORM, ChangedReader
from corosrv.gateway.forwarding.headers import media_type
from corosrv.gateway.forwarding.ollama_bodies import LineJoin, OllamaTranslation, TranslatedRequest, error_of
from corosrv.gateway.forwarding.peek import BY_PATH
from corosrv.web.http import body_reader, sse
from corosrv.web.http.lean_flask import current
from corosrv.web.http.reply import json_response
from corosrv.web.http.terms import IgnoredFields, arrival
from corosrv.web.kept.keyed_answers import KeyedAnswers

_OK = 200
_ABILITIES = ("completion", "tools")  # no upstream tells them: it is asked, and refuses what its model cannot do
_DETAILS = catalog.ModelDetails("", "", "", [], "", "")

Body = TypeVar("Body", bound=schema.NamedBody)
Translate = Callable[[dict[str, Any]], Any]


class OllamaReader(ChangedReader):
    """Reads an upstream's answer as Ollama's: lines of JSON for a stream, else one object."""

    def __init__(self, reader: InferReader, translate: Translate, join: LineJoin | None = None) -> None:
        """`translate`: for an answer that is no stream. `join`: for one that is."""
        super().__init__(reader)
        self._translate = translate
        self._join = join
        self._is_stream = False
        self._pieces: list[bytes] = []
        self._n_bytes = 0

    def _pass(self, item: InferItem) -> list[InferItem]:
        if isinstance(item, InferEnd):
            return self._end(item)
        if isinstance(item, AnswerHead):
            self._head = item
            self._is_stream = item.status == _OK and media_type(item.headers) == EVENT_STREAM
            if not self._is_stream or self._join is None:
                return []
            fields = [field for field in item.headers if field[0].lower() not in OF_THE_FORM]
            return [AnswerHead(status=_OK, headers=(*fields, ("Content-Type", sse.LINES)))]
        return self._take(item.data) if isinstance(item, AnswerBody) and self._outcome is None else []

    def _take(self, data: bytes) -> list[InferItem]:
        self._n_bytes += len(data)
        if self._n_bytes > MAX_ANSWER:
            self._give_up([InferEnd(WorkerLost(f"the upstream's answer is over {MAX_ANSWER} bytes"))])
        elif not self._is_stream or self._join is None:
            self._pieces.append(data)
        else:
            return self._feed(self._join, data)
        return []

    def _feed(self, join: LineJoin, data: bytes) -> list[InferItem]:
        last = b""
        try:
            join.feed(data)
        except StreamedError as error:
            last = encode_line(error_of(msgspec.json.encode(error.body)))
            self._give_up([InferEnd(None)])
        except WorkerLost as error:
            self._give_up([InferEnd(error)])
        lines = join.drain() + last
        return [AnswerBody(data=lines)] if lines else []

    def _end(self, end: InferEnd) -> list[InferItem]:
        if self._outcome is not None:
            return self._outcome
        if end.error is not None or self._head is None:
            return [end]
        try:
            if self._is_stream and self._join is not None:
                return [AnswerBody(data=self._join.end()), end]
            return [*self._answer(self._head.status, self._translated(self._head.status)), end]
        except WorkerLost as error:
            return [InferEnd(error)]

    def _translated(self, status: int) -> bytes:
        body = b"".join(self._pieces)
        if status != _OK:
            return msgspec.json.encode(error_of(body))
        try:
            return msgspec.json.encode(self._translate(msgspec.json.decode(body, type=dict[str, Any])))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise WorkerLost(f"the upstream's answer is none to the request: {error!r}"[:300]) from None


class OllamaForwarding:
    """Answers what Ollama's clients ask of upstreams."""

    def __init__(self, pool: UpstreamPool, forwarder: Forwarder, answers: KeyedAnswers, created: int) -> None:
        """`created`: when models were made, of which that is not known, in seconds since 1970."""
        self._pool = pool
        self._forwarder = forwarder
        self._answers = answers
        self._ignored = IgnoredFields()
        self._created = created
        self._views = ollama.views_of(self, answers.once(forwarder.max_body_bytes))

    def blueprint(self, is_mounted: bool) -> Blueprint:
        """Makes the routes for a server that has upstreams alone."""
        return ollama.make_blueprint(self._views, is_mounted)

    def look(self, path: str, stays: Callable[[str], bool]) -> Response | None:
        """Answers the current request if its body names a model of upstreams; None for any other. Waits.

        `path`: below /api. `stays`: tells whether a name of a model's is answered here, or unknown.
        """
        method = current(request).method
        if method == "GET" or (view := self._views.get((method, path))) is None:
            return None
        name = self._receive(schema.name_decoder).model_name
        return None if stays(name) else view()

    def entries(self) -> list[catalog.TaggedModel]:
        """Describes the models of upstreams, of which no more than their names is known."""
        return [
            catalog.TaggedModel(name, name, timestamp(self._created), 0, catalog.digest(ModelCard(name, 0)), _DETAILS)
            for name in map(catalog.tagged, self._pool.models())
        ]

    def tags(self) -> Response:
        if not self._pool.models():
            self._pool.check()  # says why
        return json_response(catalog.TaggedList(self.entries()))

    def running(self) -> Response:
        """Answers that none is: what upstreams have loaded is not known."""
        return json_response(catalog.RunningList([]))

    def _receive(self, decoder: msgspec.json.Decoder[Body]) -> Body:
        """Reads the current request's body and decodes it. Waits; raises Refused, which names the field at fault."""
        return body_reader.decode(current(request), self._forwarder.read()[0], decoder)

    def _find(self, body: schema.NamedBody) -> str:
        """Returns the name by which upstreams know a request's model. Raises NotFound, in Ollama's words."""
        name, names = body.model_name, self._pool.models()
        if not names:  # any name may be right
            self._pool.check()
            return name.removesuffix(catalog.LATEST)
        if found := next((spelling for spelling in catalog.spellings(name) if spelling in names), ""):
            return found
        raise NotFound(f"model '{name[:120]}' not found", "model", "model_not_found")

    def chat(self) -> Response:
        body = self._receive(schema.chat_decoder)
        return self._loaded(body) or self._answer(body, ollama_bodies.chat_request(body, self._find(body)))

    def generate(self) -> Response:
        body = self._receive(schema.generate_decoder)
        return self._loaded(body) or self._answer(body, ollama_bodies.text_request(body, self._find(body)))

    def _loaded(self, body: schema.OllamaChatBody | schema.OllamaGenerateBody) -> Response | None:
        """Answers a request without a prompt, which asks for its model to be loaded or unloaded: that is not ours."""
        if not parse.is_empty(body):
            return None
        self._find(body)
        is_unload = schema.keep_seconds(body.keep_alive) == 0
        is_chat = isinstance(body, schema.OllamaChatBody)
        return json_response(loading_answer(body.model_name, "unload" if is_unload else "load", is_chat=is_chat))

    def _answer(self, body: schema.AnsweredBody, translated: TranslatedRequest) -> Response:
        if unknown := schema.ignored_options(body):
            self._ignored.tell(unknown)
        is_chat = isinstance(body, schema.OllamaChatBody)
        translation = OllamaTranslation(body.model_name, is_chat, Stopwatch(arrival()))
        join = LineJoin(translation, is_chat=translated.path == ollama_bodies.CHAT)
        return self._forward(translated, translation.answer, join)

    def embed(self) -> Response:
        body = self._receive(schema.embed_decoder)
        translation = OllamaTranslation(body.model_name, False, Stopwatch(arrival()))
        return self._forward(ollama_bodies.embed_request(body, self._find(body)), translation.vectors)

    def embed_one(self) -> Response:
        body = self._receive(schema.embedding_decoder)
        translation = OllamaTranslation(body.model_name, False)
        return self._forward(ollama_bodies.embed_request(body, self._find(body)), translation.vector)

    def _forward(self, translated: TranslatedRequest, translate: Translate, join: LineJoin | None = None) -> Response:
        return self._forwarder.forward_changed(
            BY_PATH[translated.path],
            translated.body,
            lambda reader: OllamaReader(reader, translate, join),
            lambda error: encode_line(error_body(error)),
        )

    def show(self) -> Response:
        name = self._find(self._receive(schema.show_decoder))
        shown = catalog.ShownModel(
            license="",
            modelfile=f"# {name} is served by an upstream",
            parameters="",
            template="",
            details=_DETAILS,
            model_info={"general.architecture": "unknown", "general.basename": name},
            capabilities=list(_ABILITIES),
            modified_at=timestamp(self._created),
        )
        return json_response(shown)

    def pull(self) -> Response:
        """Answers that a model is there: it is the upstream that has it."""
        body = self._receive(schema.pull_decoder)
        self._find(body)
        lines = [PullLine("pulling manifest"), PullLine("success")]
        if body.stream is False:
            return json_response(lines[-1])
        return Response(b"".join(map(encode_line, lines)), mimetype=sse.LINES)

    def delete(self) -> Response:
        name = self._find(self._receive(schema.name_decoder))
        raise NotOffered(f"model '{name}' is the upstream's, and its operator's to remove")
