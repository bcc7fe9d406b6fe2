"""The only user of the extension: codes become exceptions, C structs become values, handles become objects."""

from corosrv.engine.binding.chat_templates import apply_chat_template, chat_template_names
from corosrv.engine.binding.engine import NativeEngine
from corosrv.engine.binding.errand import NativeErrand
from corosrv.engine.binding.json_limits import JsonLimits
from corosrv.engine.binding.library import FINGERPRINT
from corosrv.engine.binding.reader import NativeReader
from corosrv.engine.binding.values import (
    GrammarLimits,
    Kind,
    ModelInfo,
    Options,
    Slot,
    SlotAction,
    SlotContent,
    Synthetic,
    Task,
)

__all__ = [
    "FINGERPRINT",
    "GrammarLimits",
    "JsonLimits",
    "Kind",
    "ModelInfo",
    "NativeEngine",
    "NativeErrand",
    "NativeReader",
    "Options",
    "Slot",
    "SlotAction",
    "SlotContent",
    "Synthetic",
    "Task",
    "apply_chat_template",
    "chat_template_names",
]
