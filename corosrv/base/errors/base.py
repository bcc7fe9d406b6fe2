"""Defines the root of all errors, and those that belong to no request."""

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
