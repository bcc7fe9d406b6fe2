"""What all parts share: jobs go to workers, and readers give back chunks.

Adapters know no worker and workers no protocol; they meet in these values and protocols.
"""

from corosrv.jobs.chunk import Candidate, Chunk, Finish, TokenInfo
from corosrv.jobs.job import AnyJob, EmbedJob, Job, Messages, PredictJob, Prompt, RerankJob, Text, Tokens
from corosrv.jobs.model import Adapter, HasAdapters, InfillTokens, ModelCard
from corosrv.jobs.reader import Reader, Sink
from corosrv.jobs.sampling import SAMPLERS, Sampling
from corosrv.jobs.slots import HasSlots, SlotFile, SlotState
from corosrv.jobs.vocabulary import Vocabulary
from corosrv.jobs.worker import State, Worker

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
    "InfillTokens",
    "Job",
    "Messages",
    "ModelCard",
    "PredictJob",
    "Prompt",
    "Reader",
    "RerankJob",
    "Sampling",
    "Sink",
    "SlotFile",
    "SlotState",
    "State",
    "Text",
    "TokenInfo",
    "Tokens",
    "Vocabulary",
    "Worker",
]
