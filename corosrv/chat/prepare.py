"""A conversation and the model that will have it, to a job and the parser of its chunks."""

from __future__ import annotations

from corosrv.chat.conversation import Conversation
from corosrv.chat.parser import Parser, TextParser
from corosrv.errors import NotSupported
from corosrv.jobs import Job, ModelCard


def prepare(conversation: Conversation, card: ModelCard) -> tuple[Job, Parser]:
    """Raises Refused for what this model cannot do."""
    if conversation.answer_format is not None:
        raise NotSupported("response_format is not supported by this server yet", "response_format")
    return conversation.job, TextParser()
