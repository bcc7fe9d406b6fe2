"""Values and protocols that all parts share: jobs go to workers, and readers give back chunks.

Adapters know no worker and workers no protocol; they meet in these values and protocols.

Each name is fetched from its module when it is first asked for: the child that runs a predictor has to start fast, and
needs none but those of corosrv.contracts.jobs.answers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corosrv.contracts.jobs.chunk import Candidate, Chunk, Finish, TokenInfo
    from corosrv.contracts.jobs.job import (
        AnyJob,
        EmbedJob,
        Job,
        Messages,
        MultimodalText,
        PredictJob,
        Prompt,
        RerankJob,
        Text,
    )
    from corosrv.contracts.jobs.model import Adapter, HasAdapters, InfillTokens, ModelCard
    from corosrv.contracts.jobs.pieces import Image, Pieces, Rows, Tokens
    from corosrv.contracts.jobs.reader import Reader, Sink
    from corosrv.contracts.jobs.sampling import SAMPLERS, Sampling, ThoughtBudget
    from corosrv.contracts.jobs.slots import HasSlots, SlotFile, SlotState
    from corosrv.contracts.jobs.terms import Terms
    from corosrv.contracts.jobs.vocabulary import Vocabulary
    from corosrv.contracts.jobs.worker import State, Worker

__all__ = [
    "SAMPLERS",
    "Adapter",
    "AnyJob",
    "Candidate",
    "Chunk",
    "EmbedJob",
    "Finish",
    "HasAdapters",
    "HasSlots",
    "Image",
    "InfillTokens",
    "Job",
    "Messages",
    "ModelCard",
    "MultimodalText",
    "Pieces",
    "PredictJob",
    "Prompt",
    "Reader",
    "RerankJob",
    "Rows",
    "Sampling",
    "Sink",
    "SlotFile",
    "SlotState",
    "State",
    "Terms",
    "Text",
    "ThoughtBudget",
    "TokenInfo",
    "Tokens",
    "Vocabulary",
    "Worker",
]

_HOMES = {
    "Adapter": "model",
    "AnyJob": "job",
    "Candidate": "chunk",
    "Chunk": "chunk",
    "EmbedJob": "job",
    "Finish": "chunk",
    "HasAdapters": "model",
    "HasSlots": "slots",
    "Image": "pieces",
    "InfillTokens": "model",
    "Job": "job",
    "Messages": "job",
    "ModelCard": "model",
    "MultimodalText": "job",
    "Pieces": "pieces",
    "PredictJob": "job",
    "Prompt": "job",
    "Reader": "reader",
    "RerankJob": "job",
    "Rows": "pieces",
    "SAMPLERS": "sampling",
    "Sampling": "sampling",
    "Sink": "reader",
    "SlotFile": "slots",
    "SlotState": "slots",
    "State": "worker",
    "Terms": "terms",
    "Text": "job",
    "ThoughtBudget": "sampling",
    "TokenInfo": "chunk",
    "Tokens": "pieces",
    "Vocabulary": "vocabulary",
    "Worker": "worker",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
