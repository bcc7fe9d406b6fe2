"""Puts into words how an encoder process ended, for the log and for clients of images. For the server's side."""

from __future__ import annotations


def describe_end(end: str, fatal: str, has_answered: bool, model: str, mmproj: str) -> str:
    """Returns one sentence.

    `end`: the exit code or signal in words, `fatal`: the reason that the process gave, if it gave one, `has_answered`:
    whether it had opened its files, and said so.
    """
    if fatal:
        return f"the encoder cannot serve: {fatal}"
    if has_answered:
        return f"the encoder process ended by {end} while it served"
    return (
        f"the encoder process ended by {end} while it opened the projector {mmproj} and the model {model}; "
        "libmtmd does not survive a projector file that is damaged or lacks tensors"
    )
