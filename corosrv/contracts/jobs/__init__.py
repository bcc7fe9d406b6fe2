"""Values and protocols that all parts share: jobs go to workers, and readers give back chunks.

Adapters know no worker and workers no protocol; they meet in these values and protocols.

Each name is fetched from its module when it is first asked for: the child that runs a predictor has to start fast, and
needs none but those of corosrv.contracts.jobs.setup.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corosrv.contracts.jobs.job import (
        SAMPLERS,
        AnyJob,
        Defaults,
        EmbedJob,
        Image,
        Job,
        Messages,
        MultimodalText,
        Pieces,
        PredictJob,
        Prompt,
        RerankJob,
        Rows,
        Sampling,
        Text,
        ThoughtBudget,
        Tokens,
        check_template_arguments,
        sampler_names,
    )
    from corosrv.contracts.jobs.reader import Candidate, Chunk, Finish, Reader, Sink, TokenInfo
    from corosrv.contracts.jobs.terms import Terms
    from corosrv.contracts.jobs.worker import (
        Adapter,
        HasAdapters,
        HasSlots,
        InfillTokens,
        ModelCard,
        SlotFile,
        SlotState,
        State,
        Vocabulary,
        Worker,
        token_biases,
    )

__all__ = [
    "SAMPLERS",
    "Adapter",
    "AnyJob",
    "Candidate",
    "Chunk",
    "Defaults",
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
    "check_template_arguments",
    "sampler_names",
    "token_biases",
]

_HOMES = {
    "Adapter": "worker",
    "AnyJob": "job",
    "Candidate": "reader",
    "Chunk": "reader",
    "Defaults": "job",
    "EmbedJob": "job",
    "Finish": "reader",
    "HasAdapters": "worker",
    "HasSlots": "worker",
    "Image": "job",
    "InfillTokens": "worker",
    "Job": "job",
    "Messages": "job",
    "ModelCard": "worker",
    "MultimodalText": "job",
    "Pieces": "job",
    "PredictJob": "job",
    "Prompt": "job",
    "Reader": "reader",
    "RerankJob": "job",
    "Rows": "job",
    "SAMPLERS": "job",
    "Sampling": "job",
    "Sink": "reader",
    "SlotFile": "worker",
    "SlotState": "worker",
    "State": "worker",
    "Terms": "terms",
    "Text": "job",
    "ThoughtBudget": "job",
    "TokenInfo": "reader",
    "Tokens": "job",
    "Vocabulary": "worker",
    "Worker": "worker",
    "check_template_arguments": "job",
    "sampler_names": "job",
    "token_biases": "worker",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
