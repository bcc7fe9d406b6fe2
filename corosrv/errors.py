"""What can go wrong, as one tree. Inner code raises what happened; each protocol gives it its wire form in one place.

CorosrvError
├── SettingsError            a setting is wrong; the start stops
├── LibllamaError            libllama cannot be found, or is not the one that the extension was built with
├── BenchError               a load cannot be put on a server as asked
├── Unauthorized             no key, or a wrong one
├── Forbidden                a browser asks for a page that may not call, or by a name that is not this server's
├── ClientGone               the client left before its answer was ready
├── Refused                  the request cannot be taken as it stands; says which parameter
│   ├── PromptTooLong        more tokens than the context of a slot holds
│   ├── BodyTooLarge
│   ├── BodyTooSlow          the body did not arrive in time
│   ├── UnsupportedMedia     the body is something else than JSON
│   ├── InvalidJson          the body is not well-formed JSON
│   ├── NotFound             no such thing here
│   │   └── ModelNotFound
│   ├── InvalidGrammar       no GBNF, or more of it than is taken; says where
│   ├── InvalidSchema        no JSON schema, or one that no grammar can hold; says where
│   ├── NotSupported         a parameter that is known, and not honoured here
│   ├── NotOffered           the endpoint is switched off, or the model lacks the ability
│   ├── InvalidInput         fields of a prediction's request, each with its place and what is wrong with it
│   ├── NotStreamed          the predictor has not opted in to event streams
│   ├── IdTaken              another prediction has, or had, this id
│   └── TooManyReaders       as many read this prediction's events as may
├── Unavailable              this server cannot take it now; another moment may do
│   ├── Starting             the model is still loading
│   ├── ModelFailed          the model could not be loaded
│   ├── ShuttingDown
│   ├── NoDescriptor         no file descriptor is left
│   ├── SlotBusy             its task did not end in time
│   ├── TooManyBodies        the bodies of all requests at once are too large together
│   ├── TooBusy              a check of the request could not be made in time
│   ├── NoCapacity           every slot runs a prediction, and there is no queue
│   ├── WorkerGone           the predictor's process ended, or was never set up
│   └── QueueFull            as many jobs wait as may wait
├── RedirectRefused          an answer sends a request on to where it is not to go
├── DestinationRefused       a request would go to an address that is not for clients to choose
├── LoadError                there is no such predictor, or it does not fit its slots; its set-up fails
├── SignatureError           a predictor's inputs or output cannot be read; its set-up fails
├── InputFailed              an input could not be fetched or decoded; the prediction fails
├── OutputFailed             an output could not be sent; the prediction fails
├── JobFailed                a job that was taken ended in an error
│   ├── JobRefused           which lies in what was asked for; a Refused, too
│   └── JobPutOff            which another moment may not have; an Unavailable, too
├── ReadTimeout              nothing to read within the time given
├── WireError                what went wrong between two processes
│   ├── BadFrame             what arrived is no message
│   ├── ProtocolError        what arrived ought not to come, or not now
│   ├── FrameTooLarge        the message is larger than the channel carries
│   └── ChannelClosed        nobody is at the other end
└── Misuse                   a bug of the caller; the message says what to do instead
    ├── IllegalTransition    a state machine was asked for a move that its table does not have
    ├── WrongThread
    ├── UsedAfterClose
    └── UsedAfterFork
"""

from __future__ import annotations

from enum import Enum
from typing import Any


class CorosrvError(Exception):
    """Any error of corosrv; `str()` is a sentence for whoever asked."""


class SettingsError(CorosrvError):
    """A setting is wrong; names the variable."""


class LibllamaError(CorosrvError):
    """libllama cannot be used; says how to install or rebuild."""


class BenchError(CorosrvError):
    """A load cannot be put on a server as asked: no such address, nobody there, or more than this machine can open."""


class Unauthorized(CorosrvError):
    """The request has no key, or a wrong one."""


class Forbidden(CorosrvError):
    """A web page that may not call, or a host name that this server may not be called by; `code` says which."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ClientGone(CorosrvError):
    """The client left before its answer was ready; nobody will read what is answered."""


class Refused(CorosrvError):
    """A request that cannot be taken: `param` is the path of the field at fault, `code` a word for programs."""

    def __init__(self, message: str, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class BodyTooLarge(Refused):
    """The request body is over the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request body is larger than the {limit} bytes allowed", None, "body_too_large")


class BodyTooSlow(Refused):
    """The request body did not arrive in time."""

    def __init__(self) -> None:
        super().__init__("the request body did not arrive in time", None, "request_timeout")


class UnsupportedMedia(Refused):
    """The body has a type or an encoding that is not read here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None, "unsupported_media_type")


class InvalidJson(Refused):
    """The request body is not well-formed JSON."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the body is not valid JSON: {reason}", None, "invalid_json")


class PromptTooLong(Refused):
    """The prompt leaves no room for an answer in the `context` tokens of a slot.

    `is_estimate`: refused by its size before it was tokenised.
    """

    def __init__(
        self,
        n_tokens: int,
        context: int,
        param: str | None = None,
        is_estimate: bool = False,
        has_answer: bool = True,
    ) -> None:
        subject = "the prompt" if has_answer and not is_estimate else "the input is too large: it"
        super().__init__(
            f"{subject} has {'some ' if is_estimate else ''}{n_tokens} tokens, which exceeds the available context "
            f"size of {context}{', of which at least one token is for the answer' if has_answer else ''}",
            param,
            "context_length_exceeded",
        )
        self.n_tokens = n_tokens
        self.context = context


class NotFound(Refused):
    """No such thing here; `code` says of which kind."""


class ModelNotFound(NotFound):
    """No model of this name is served here."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"the model '{model[:120]}' does not exist here; GET /v1/models lists those that do",
            "model",
            "model_not_found",
        )


class InvalidGrammar(Refused):
    """The grammar cannot be used; the message begins with line and column."""

    def __init__(self, message: str) -> None:
        super().__init__(f"grammar: {message}", "grammar", "invalid_grammar")


class InvalidSchema(Refused):
    """The JSON schema cannot be used; `place` is a pointer into it, as `#/properties/age`."""

    def __init__(self, place: str, what: str, param: str) -> None:
        super().__init__(f"{param}: the schema at {place}: {what}", param, "invalid_schema")
        self.place = place


class NotSupported(Refused):
    """A parameter or value that is known to the protocol, and not honoured here."""


class NotOffered(Refused):
    """The whole endpoint is switched off, or this model lacks the ability that it needs."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None, None)


class InvalidInput(Refused):
    """Fields of a prediction's request that cannot be taken: `errors` has `loc`, `msg` and `type` of each."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in errors))
        self.errors = errors


class NotStreamed(Refused):
    """An event stream was asked for, and the predictor has not opted in."""

    def __init__(self) -> None:
        super().__init__("This model does not support streaming responses: it opts in with @streaming", None)


class IdTaken(Refused):
    """The id belongs to another prediction, which runs, or has ended and is remembered."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "id", "id_taken")


class TooManyReaders(Refused):
    """As many clients read a prediction's events as may."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} clients read this prediction's events already, and no more may", None)


class Unavailable(CorosrvError):
    """This server cannot take the request now."""

    retry_after: int | None = 1  # seconds


class Starting(Unavailable):
    """The model is still loading."""


class ModelFailed(Unavailable):
    """The model could not be loaded. Without `retry_after` nothing helps until an operator has acted."""

    def __init__(self, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ShuttingDown(Unavailable):
    """The server is ending."""


class NoDescriptor(Unavailable):
    """The process has no file descriptor left for what was asked."""


class SlotBusy(Unavailable):
    """A slot whose content is wanted has a task, which did not end in time."""


class TooManyBodies(Unavailable):
    """The bodies of all requests that are read now are too large together."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the bodies of all requests at once exceed the {limit} bytes allowed; try again")


class TooBusy(Unavailable):
    """A check of the request could not be made in time: the machine was busy or paused. The request may be fine."""


class NoCapacity(Unavailable):
    """Every slot runs a prediction; there is no queue."""

    def __init__(self) -> None:
        super().__init__("the predictor is at capacity: all its slots are busy")


class WorkerGone(Unavailable):
    """The predictor's process ended, or was never set up. Nothing helps until an operator has acted."""

    retry_after = None


class QueueFull(Unavailable):
    """As many jobs wait for a slot as may wait."""


class RedirectRefused(CorosrvError):
    """An answer sends one of our own requests on to where it is not to go, or too often."""


class DestinationRefused(CorosrvError):
    """One of our own requests would go to an address that no client may choose; says why."""


class LoadError(CorosrvError):
    """There is no such predictor, or it does not fit the slots that it was to have."""


class SignatureError(CorosrvError):
    """A predictor's inputs or output cannot be read; says which."""


class InputFailed(CorosrvError):
    """An input could not be fetched or decoded; names it, and the status or cause."""


class OutputFailed(CorosrvError):
    """An output could not be sent: no JSON value, a file that is not there, a failed upload."""


class JobFailed(CorosrvError):
    """A job that was taken ended in an error chunk; the message is the chunk's."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class JobRefused(JobFailed, Refused):
    """What was asked for has no answer: a grammar that no token goes on with, a bias that bans them all."""

    param = None


class JobPutOff(JobFailed, Unavailable):
    """The server ended the job, for reasons of its own: it is stopping, or had no slot for too long."""


class ReadTimeout(CorosrvError):
    """Nothing arrived within the time given."""


class WireError(CorosrvError):
    """Something went wrong between two processes that talk over a channel."""


class BadFrame(WireError):
    """What arrived is no message, and nothing behind it can be understood."""


class ProtocolError(WireError):
    """A message arrived that ought not to come, or not now; the sender cannot be relied on."""


class FrameTooLarge(WireError):
    """The message is larger than the channel carries; nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a message of {size} bytes, where {limit} are allowed")


class ChannelClosed(WireError):
    """Nobody is at the other end, or this end was closed."""


class Misuse(CorosrvError):
    """A bug of the caller."""


class IllegalTransition(Misuse):
    """A state machine was asked for a move that its table does not have."""

    def __init__(self, what: str, before: Enum, after: Enum) -> None:
        super().__init__(f"{what} cannot go from {before.value} to {after.value}")


class WrongThread(Misuse):
    """A reader was used by another thread than the one that made it."""


class UsedAfterClose(Misuse):
    """An engine or reader was used after close()."""


class UsedAfterFork(Misuse):
    """An engine or reader was used in a child of the process that opened it."""
