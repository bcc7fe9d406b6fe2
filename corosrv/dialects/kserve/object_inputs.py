"""Fills inputs that refer to an object with its content."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from corosrv.base.errors import InvalidTensor, NotOffered
from corosrv.contracts.jobs.infer import ObjRef

OBJECT_REF = "object_ref"  # the parameter of such an input

# Returns the content of an object by its id, for the client of the current request. Raises ObjectNotFound and
# ObjectExpired.
FindObject = Callable[[str], memoryview]


def no_objects(object_id: str) -> memoryview:
    """Refuses an input that refers to an object, where the server stores none."""
    raise NotOffered("this server stores no objects: it serves no application")


def object_id(name: str, ref: object) -> str:
    """Returns the id in a reference, which is an id by itself or the JSON of an ObjRef. Raises InvalidTensor."""
    if not isinstance(ref, str):
        raise InvalidTensor(name, f"has the {OBJECT_REF} {ref!r:.80}, which is no text")
    if not ref:
        raise InvalidTensor(name, f"has an empty {OBJECT_REF}, which names no object")
    if not ref.startswith("{"):
        return ref
    try:
        return msgspec.json.decode(ref, type=ObjRef).id
    except msgspec.MsgspecError as error:
        raise InvalidTensor(name, f"has an {OBJECT_REF} that is no reference: {error}") from None
