"""Tasks that failed, and what that means for the request that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corosrv.base.errors import CorosrvError, JobFailed, JobOverdue, JobPutOff, JobRefused, JobWaitedTooLong
from corosrv.contracts.jobs import Chunk, Finish
from corosrv.web.groups.table import GroupMember

FailureOf = Callable[[Chunk], CorosrvError | None]

# By the code of an error chunk; any other is a bug, or a failed decode.
_KINDS: dict[str, type[JobFailed]] = {
    **dict.fromkeys(("grammar_dead_end", "grammar_too_slow", "all_tokens_banned", "embeds_not_finite"), JobRefused),
    "server_shutting_down": JobPutOff,
    "queue_timeout": JobWaitedTooLong,
    "deadline_exceeded": JobOverdue,
}

# Clients that sent a schema know of no grammar.
_WORDS = {
    "grammar_dead_end": "no token of this model continues the answer in the form that it must have",
    "grammar_too_slow": "the form that the answer must have is too ambiguous to be followed",
}


def failure_of(chunk: Chunk) -> JobFailed | None:
    """Returns why a terminal chunk's task failed, or None where it did not."""
    if chunk.finish is Finish.ERROR:
        return _KINDS.get(chunk.code, JobFailed)(_WORDS.get(chunk.code, chunk.text), chunk.code or None)
    return JobFailed("the request was cancelled") if chunk.finish is Finish.CANCELLED else None


def failures_in_group(member: GroupMember) -> FailureOf:
    """Makes what tells why a task of a group's member failed.

    After an abort a task that was cancelled did not, if partial answers are kept.
    """

    def failure(chunk: Chunk) -> CorosrvError | None:
        if chunk.finish is not Finish.CANCELLED or not member.is_aborted:
            return failure_of(chunk)
        return None if member.keeps_partial else member.error()

    return failure


def until_failure(
    chunks: Sequence[Chunk], find_failure: FailureOf = failure_of
) -> tuple[Sequence[Chunk], CorosrvError | None]:
    """Returns the chunks before the first one whose task failed, and its failure."""
    for number, chunk in enumerate(chunks):
        if chunk.finish is not None and (failure := find_failure(chunk)) is not None:
            return chunks[:number], failure
    return chunks, None
