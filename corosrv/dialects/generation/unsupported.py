"""Known parameters that are not offered: refused by name, so that no client believes that one was honoured."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec

from corosrv.base.errors import NotSupported

# Each with the values that ask for nothing.
Neutral = Mapping[str, tuple[Any, ...]]

EVERYWHERE: Neutral = {
    "n_indent": (0,),
}

Body = TypeVar("Body", bound=msgspec.Struct)


def decoder(body: type[Body], neutral: Neutral) -> msgspec.json.Decoder[Body]:
    """Makes the decoder of a body whose fields also are those of `neutral`.

    It raises NotSupported for the first of them that asks for something, when the rest of the body is valid.
    """
    field_names = {field.name for field in msgspec.structs.fields(body)}
    values_of = attrgetter(*neutral)
    left_out = values_of(SimpleNamespace(**dict.fromkeys(neutral)))

    def check(decoded: msgspec.Struct) -> None:
        if values_of(decoded) != left_out:  # as in hardly any body
            _refuse(decoded, neutral)

    decoded = msgspec.defstruct(
        body.__name__,
        [(name, Any, None) for name in neutral if name not in field_names],
        bases=(body,),
        namespace={"__post_init__": check},
        kw_only=True,
    )
    return msgspec.json.Decoder(cast(type[Body], decoded))


def _refuse(body: msgspec.Struct, neutral: Neutral) -> None:
    for name, values in neutral.items():
        value = getattr(body, name)
        if value is not None and not any(_is_same(value, neutral_value) for neutral_value in values):
            raise NotSupported(f"{name} is not supported by this server yet", name, "unsupported_parameter")


def _is_same(value: Any, neutral_value: Any) -> bool:
    """Compares as JSON does: True == 1 in Python, and not here; 0.0 asks for as little as 0 does."""
    return bool(value == neutral_value) and isinstance(value, bool) == isinstance(neutral_value, bool)
