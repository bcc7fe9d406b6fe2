"""The root of all errors, those that belong to no request, and those that a request is to blame for.

The last include errors of HTTP and of access, which are raised before a dialect sees the request. A class has the
status of the answer and a code for programs; each dialect has its own word for its `ErrorKind`.
"""

from __future__ import annotations

from enum import Enum


class ErrorKind(Enum):
    """The kind of a failure; each dialect has its own word for it."""

    INVALID_REQUEST = "invalid request"
    CONTEXT_EXCEEDED = "context exceeded"
    TOO_LARGE = "too large"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not found"
    NOT_OFFERED = "not offered"
    RATE_LIMITED = "rate limited"
    UNAVAILABLE = "unavailable"
    CLIENT_GONE = "client gone"
    CONFLICT = "conflict"
    DEADLINE_PASSED = "deadline passed"
    WORKER_LOST = "worker lost"
    FAILED = "failed"


class CorosrvError(Exception):
    """Any error of corosrv; `str()` is a sentence for the client."""

    status: int = 500  # of the HTTP answer
    kind: ErrorKind = ErrorKind.FAILED
    code: str | None = None  # for programs
    param: str | None = None  # path of the field at fault
    retry_after: int | None = None  # seconds after which another try makes sense
    # What X-Should-Retry tells the clients that know it, where a status alone would make them repeat in vain.
    should_retry: bool | None = None
    ends_connection: bool = False  # the rest of the body is not read, so the connection must close

    def fresh(self) -> CorosrvError:
        """Returns the same error as it was before it was raised: it keeps no frame alive, with all that those hold."""
        error: CorosrvError = type(self).__new__(type(self), *self.args)
        error.__dict__.update(self.__dict__)
        return error


class SettingsError(CorosrvError):
    """A setting is wrong; names the variable."""


class LibllamaError(CorosrvError):
    """libllama cannot be used; says how to install or rebuild."""


class BenchError(CorosrvError):
    """The load generator cannot run: a wrong address, no server there, or more connections than this machine allows."""


class ManagementError(CorosrvError):
    """A management command cannot be carried out: no server runs here, or it refuses."""


class ReadTimeout(CorosrvError):
    """A read timed out: nothing arrived."""


class Misuse(CorosrvError):
    """A bug of the caller."""


class IllegalTransition(Misuse):
    """A state machine has no such transition in its table."""

    def __init__(self, subject: str, old: Enum, new: Enum) -> None:
        super().__init__(f"{subject} cannot go from {old.value} to {new.value}")


class WrongThread(Misuse):
    """A reader was used by another thread than the one that made it."""


class UsedAfterClose(Misuse):
    """An engine or reader was used after close()."""


class UsedAfterFork(Misuse):
    """An engine or reader was used in a child of the process that opened it."""

    status = 503
    kind = ErrorKind.UNAVAILABLE


class Refused(CorosrvError):
    """The request is wrong: `param` is the path of the field at fault, `code` a word for programs."""

    status = 400
    kind = ErrorKind.INVALID_REQUEST

    def __init__(self, message: str, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class TemplateTooCostly(Refused):
    """The model's chat template takes more steps, characters or processor time for a conversation than it may."""


class BodyTooLarge(Refused):
    """The request body is over the limit. `is_read`: all that was sent is read, so the connection can be used on."""

    status = 413
    kind = ErrorKind.TOO_LARGE

    def __init__(self, limit: int, is_read: bool = False) -> None:
        super().__init__(f"the request body is larger than the {limit} bytes allowed", None, "body_too_large")
        self.ends_connection = not is_read


class MessageTooLarge(Refused):
    """A message over gRPC is larger than one may be, before it is inflated or after."""

    status = 413
    kind = ErrorKind.TOO_LARGE

    def __init__(self, limit: int) -> None:
        super().__init__(f"the message is larger than the {limit} bytes allowed", None, "message_too_large")


class BodyTooSlow(Refused):
    """The request body did not arrive in time."""

    status = 408
    ends_connection = True

    def __init__(self) -> None:
        super().__init__("the request body did not arrive in time", None, "request_timeout")


class BodyIncomplete(Refused):
    """The request body ended before all of it had arrived."""

    ends_connection = True

    def __init__(self, message: str) -> None:
        super().__init__(message, None, "incomplete_body")


class UnsupportedMedia(Refused):
    """The body has a type or an encoding that is not read here."""

    status = 415
    ends_connection = True

    def __init__(self, message: str) -> None:
        super().__init__(message, None, "unsupported_media_type")


class InvalidJson(Refused):
    """The request body is not well-formed JSON."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the body is not valid JSON: {reason}", None, "invalid_json")


class InvalidImage(Refused):
    """An image of the request is none, is of a kind that is not read, or is over a limit."""

    def __init__(self, message: str, param: str | None, code: str | None = "invalid_image") -> None:
        super().__init__(message, param, code)


class PromptTooLong(Refused):
    """The prompt leaves no room for an answer in the `context` tokens of a slot.

    `is_estimate`: refused by its size before it was tokenised.
    """

    kind = ErrorKind.CONTEXT_EXCEEDED

    def __init__(
        self, n_tokens: int, context: int, param: str | None = None, is_estimate: bool = False, has_answer: bool = True
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
        self.is_estimate = is_estimate


class InvalidTrip(Refused):
    """The headers that describe a request's way between replicas are malformed, so it goes to no other replica."""


class NotFound(Refused):
    """The request names something that is not here; `code` says what kind of thing."""

    status = 404
    kind = ErrorKind.NOT_FOUND


class ModelNotFound(NotFound):
    """The request names a model that is not served here."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"the model '{model[:120]}' does not exist here; GET /v1/models lists those that do",
            "model",
            "model_not_found",
        )


class InvalidGrammar(Refused):
    """The grammar cannot be used; the message begins with line and column."""

    def __init__(self, message: str, param: str = "grammar") -> None:
        super().__init__(f"{param}: {message}", param, "invalid_grammar")
        self._fault = message

    def for_field(self, param: str) -> Refused:
        """Returns the error for a client that sent the grammar, or the schema that it was made of, in this field."""
        if param == self.param:
            return self
        if param.endswith("grammar"):
            return InvalidGrammar(self._fault, param)
        problem = "is too large or too deep for this server once it is compiled; ask for fewer or simpler values"
        return InvalidSchema("#", problem, param)


class InvalidSchema(Refused):
    """The JSON schema cannot be used; `place` is a pointer into it, as `#/properties/age`."""

    def __init__(self, place: str, problem: str, param: str) -> None:
        super().__init__(f"{param}: the schema at {place}: {problem}", param, "invalid_schema")
        self.place = place


class NotSupported(Refused):
    """A parameter or value of the protocol that this server does not offer."""


class NotOffered(Refused):
    """The endpoint is switched off, or this model lacks the ability that it needs."""

    status = 501
    kind = ErrorKind.NOT_OFFERED

    def __init__(self, message: str) -> None:
        super().__init__(message, None, None)


class HttpError(CorosrvError):
    """An error of HTTP itself: an unknown path, a wrong method."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = _HTTP_KINDS.get(status, ErrorKind.INVALID_REQUEST if status < 500 else ErrorKind.FAILED)
        self.code = "method_not_allowed" if status == 405 else None


_HTTP_KINDS = {404: ErrorKind.NOT_FOUND, 501: ErrorKind.NOT_OFFERED}


class Unauthorized(CorosrvError):
    """The request has no key, or an unknown one."""

    status = 401
    kind = ErrorKind.UNAUTHORIZED
    code = "invalid_api_key"
    ends_connection = True


class Forbidden(CorosrvError):
    """A web page without permission, or a host name that is not this server's; `code` says which."""

    status = 403
    kind = ErrorKind.FORBIDDEN
    ends_connection = True

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class LoopDetected(CorosrvError):
    """The request has passed this replica before, on its way from peer to peer."""

    status = 508
    kind = ErrorKind.FAILED
    code = "loop_detected"


class ClientGone(CorosrvError):
    """The client left before its answer was ready; nobody will read the answer."""

    status = 499
    kind = ErrorKind.CLIENT_GONE
