"""Values and protocols that all parts share: jobs go to workers, and readers give back chunks.

Adapters know no worker and workers no protocol; they meet in these values and protocols.

Each name is fetched from its module when it is first asked for: the child that runs a predictor has to start fast, and
needs none but those of corosrv.contracts.jobs.setup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corosrv.base import import_late

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

__getattr__ = import_late(
    __name__,
    {
        "corosrv.contracts.jobs.job": "SAMPLERS AnyJob Defaults EmbedJob Image Job Messages MultimodalText Pieces "
        "PredictJob Prompt RerankJob Rows Sampling Text ThoughtBudget Tokens check_template_arguments sampler_names",
        "corosrv.contracts.jobs.reader": "Candidate Chunk Finish Reader Sink TokenInfo",
        "corosrv.contracts.jobs.terms": "Terms",
        "corosrv.contracts.jobs.worker": "Adapter HasAdapters HasSlots InfillTokens ModelCard SlotFile SlotState State "
        "Vocabulary Worker token_biases",
    },
)
