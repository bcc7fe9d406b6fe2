"""Responses that run without their clients: begun, read while they run, followed, and cancelled."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import gevent
import msgspec
from flask import Response, request

from corosrv.base.errors import EventsGone, NotFound, NotSupported, Refused
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.openai.responses.answer_types import ResponseObject
from corosrv.dialects.openai.responses.answers import ResponseAnswer
from corosrv.dialects.openai.responses.store import Item, Shelf
from corosrv.web.http.lean_flask import current
from corosrv.web.http.reply import json_response
from corosrv.web.kept.answer_log import AnswerLog
from corosrv.web.kept.streams import LAST_EVENT, ResumableStreams, last_event, parse_number

END_S = 10.0  # in which a response that is cancelled has ended
_LOOK_S = 60.0  # between two looks at a response whose end is told


PostEvent = Callable[[bytes, str], None]  # an event as JSON, and its name for the log


def _tell(post_event: PostEvent, log: AnswerLog, answer: ResponseAnswer) -> None:
    """Sends the event of a response when it has ended. Waits for that, which the response's own limits bound."""
    while not log.wait_for_end(_LOOK_S):
        continue
    type = f"response.{answer.final_status}"
    event = {
        "id": f"evt_{secrets.token_hex(24)}",
        "object": "event",
        "created_at": int(time.time()),
        "type": type,
        "data": {"id": answer.id},
    }
    post_event(msgspec.json.encode(event), f"{answer.id}: webhook {type}")


class BackgroundResponses:
    """The background responses of all callers, each found by its own caller alone. Belongs to the hub's thread.

    One runs to its end, whether or not somebody reads it; then it is stored like others, also if it failed.
    """

    def __init__(self, flow: RequestFlow, answer: Callable[[Call], Response], post_event: PostEvent | None) -> None:
        """`answer`: begins a call, and answers as it asks; `post_event`: sends the event of a response that has ended
        to whoever the operator has named."""
        self._flow = flow
        self._answer = answer
        self._post_event = post_event
        self._answers: WeakKeyDictionary[AnswerLog, ResponseAnswer] = WeakKeyDictionary()

    def start(self, call: Call, answer: ResponseAnswer) -> Response:
        """Begins a response; answers with its stream, or as far as it has come. Raises what `answer` does,
        and NotSupported where no streams can be resumed."""
        streams = self._streams
        if streams is None or not streams.logs.is_on:
            raise NotSupported("background: no streams can be resumed here (see COROSRV_RESUME_S)", "background")
        streamed = msgspec.structs.replace(call, stream=True)
        response = streams.call(lambda: self._answer(streamed))
        log = streams.keep(response, [("response", answer.id)], needs_client=False)
        self._answers[log] = answer
        if self._post_event is not None:
            gevent.spawn(_tell, self._post_event, log, answer)
        if call.stream:
            return response
        response.response.close()  # type: ignore[union-attr]  # its stream, which nobody reads
        return json_response(answer.snapshot())

    @property
    def _streams(self) -> ResumableStreams | None:
        return self._flow.answers.streams

    def _find(self, id: str) -> AnswerLog | None:
        return None if self._streams is None else self._streams.find(("response", id))

    def read(self, id: str) -> ResponseObject | None:
        """Returns a response that runs as far as it has come; None if none of the caller's with this id does."""
        log = self._find(id)
        return None if log is None or log.is_ended else self._answers[log].snapshot()

    def input_of(self, id: str) -> Sequence[Item]:
        """Returns the input of a response that runs; nothing if none of the caller's with this id does."""
        log = self._find(id)
        return () if log is None or log.is_ended else self._answers[log].input_items

    def follow(self, id: str, shelf: Shelf) -> Response:
        """Answers with the events of a response behind `starting_after`, those of its stream that are yet to come too.

        Raises NotFound, Refused, EventsGone, and NotSupported for a response that never ran in the background.
        """
        log, starting_after = self._find(id), current(request).args.get("starting_after")
        if log is None or self._streams is None:
            if shelf.get(id).response.background:
                raise EventsGone("the events", None, "stream")
            words = "stream is offered for responses with background alone"
            raise NotSupported(words, "stream", "unsupported_parameter")
        if starting_after is None:
            return self._streams.response(log.follow(last_event(current(request).environ) or 0, LAST_EVENT))
        number = parse_number(starting_after, "starting_after") + 1  # responses number their events from 0 on
        return self._streams.response(log.follow(number, "starting_after"))

    def cancel(self, id: str, shelf: Shelf) -> ResponseObject:
        """Ends a response, unless it has ended, and returns it. Waits until it has ended.

        Raises NotFound, and Refused for a response that never ran in the background.
        """
        log = self._find(id)
        if log is not None and not log.is_ended:
            self._answers[log].is_cancelled = True
            log.cancel()
            if not log.wait_for_end(END_S):
                return self._answers[log].snapshot()
        response = shelf.get(id).response
        if not response.background:
            raise Refused("only a response with background: true can be cancelled", "id")
        return response

    def drop(self, id: str, shelf: Shelf) -> None:
        """Ends a response, and forgets it and its events. Waits until it has ended. Raises NotFound."""
        log = self._find(id)
        if log is not None:
            try:
                self.cancel(id, shelf)
            except NotFound:  # too large to be stored
                log.drop()
                return
            log.drop()
        shelf.drop(id)
