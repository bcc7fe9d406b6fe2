"""The chat templates that libllama has built in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from corosrv.models.engine.binding.library import check, ffi, lib, text_of

_TYPICAL_BYTES = 64  # that a template adds to a message


@cache
def chat_template_names() -> tuple[str, ...]:
    """Their names, in the order of the alphabet."""
    n_names = ffi.new("size_t *")
    check(lib.corosrv_chat_template_names(ffi.NULL, 0, n_names))
    names = ffi.new("const char *[]", n_names[0])
    check(lib.corosrv_chat_template_names(names, len(names), n_names))
    return tuple(map(text_of, names))


def apply_chat_template(name: str, messages: Sequence[tuple[str, str]], add_prompt: bool) -> str:
    """Writes a conversation of roles and contents, which must not hold NUL, as the template of this name has it.

    `add_prompt`: the beginning of the assistant's next message follows. Raises Refused for an unknown name.
    """
    texts = [(ffi.new("char[]", role.encode()), ffi.new("char[]", content.encode())) for role, content in messages]
    structs, text_size = ffi.new("corosrv_chat_message[]", texts), ffi.new("size_t *")
    size, capacity = sum(len(role) + len(content) + _TYPICAL_BYTES for role, content in texts), 0
    while size > capacity:
        capacity = size
        text = ffi.new("char[]", capacity)
        arguments = (name.encode(), structs, len(texts), add_prompt, text, capacity, text_size)
        check(lib.corosrv_chat_template_apply(*arguments))
        size = text_size[0]
    return bytes(ffi.buffer(text, size)).decode()
