"""Words what the library raises: what went wrong, and what would help."""

from __future__ import annotations

import errno

from corosrv.contracts.settings.hub import HubName


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status that an error stands for; None for one of the connection."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_unreachable(error: BaseException) -> bool:
    """Returns whether the hub did not answer, or has troubles of its own: files that are there may be used then."""
    status = status_of(error)
    return not isinstance(error, ValueError) and (status is None or status >= 500 or status == 429)


def words(error: BaseException, name: HubName, endpoint: str) -> str:
    """Words an error of the library for the operator."""
    if type(error).__name__ == "GatedRepoError":
        return (
            f"{name.repo} is gated: accept its terms on {endpoint}/{name.repo}, and give a token that may read it "
            "(HF_TOKEN or --hf-token)"
        )
    if type(error).__name__ == "RevisionNotFoundError":
        return f"{name.repo} has no revision {name.revision!r}"
    status = status_of(error)
    if status in (401, 403, 404):
        return (
            f"{endpoint} has no repository {name.repo}, or one that needs a token which may read it "
            f"(HF_TOKEN or --hf-token): status {status}"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {error}; what was downloaded stays, and the next try goes on with it"
    if isinstance(error, PermissionError):
        return f"the cache of models cannot be written: {error}; choose another folder with HF_HOME"
    first_line = (str(error) or type(error).__name__).strip().splitlines()[0]
    return f"{name.repo} could not be had from {endpoint}: {first_line}; what was downloaded stays for the next try"
