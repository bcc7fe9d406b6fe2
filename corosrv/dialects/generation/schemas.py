"""JSON schemas of a request, within the limits of the model that answers it."""

from __future__ import annotations

from corosrv.base.processor import Turns
from corosrv.contracts.jobs import ModelCard
from corosrv.formats.structured import Effort, SchemaLimits


def schema_limits(card: ModelCard) -> SchemaLimits:
    """Returns the limits of schemas whose grammars this model's engine is to compile."""
    return SchemaLimits(
        grammar_bytes=card.grammar_bytes, rules=card.grammar_rules, repetitions=card.grammar_repetitions
    )


def effort(limits: SchemaLimits) -> Effort:
    """Returns the effort for all schemas of one request, which lets other greenlets run meanwhile."""
    return Effort(limits, Turns().give_way)
