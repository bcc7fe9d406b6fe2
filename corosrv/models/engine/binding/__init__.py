"""The only user of the extension: codes become exceptions, C structs become values, handles become objects."""

from corosrv.models.engine.binding.engine import (
    NativeEngine,
    NativeJsonScanner,
    NativeSlotRequest,
    NativeVocabulary,
    TokenCalls,
    apply_chat_template,
    chat_template_names,
)
from corosrv.models.engine.binding.library import FINGERPRINT
from corosrv.models.engine.binding.reader import NativeReader
from corosrv.models.engine.binding.values import (
    GrammarLimits,
    ModelInfo,
    Options,
    Placement,
    SlotAction,
    SlotContent,
    SlotCounters,
    Synthetic,
    Task,
    TaskKind,
)

__all__ = [
    "FINGERPRINT",
    "GrammarLimits",
    "ModelInfo",
    "NativeEngine",
    "NativeJsonScanner",
    "NativeReader",
    "NativeSlotRequest",
    "NativeVocabulary",
    "Options",
    "Placement",
    "SlotAction",
    "SlotContent",
    "SlotCounters",
    "Synthetic",
    "Task",
    "TaskKind",
    "TokenCalls",
    "apply_chat_template",
    "chat_template_names",
]
