"""Says by name why a model cannot read the rows of a projector, where libmtmd itself would make nonsense of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from corosrv.base.errors import LoadError
from corosrv.images.transfer.messages import MROPE, NON_CAUSAL

# Types of projectors that are made for models with M-RoPE alone. libmtmd asks the model, and not the projector.
MROPE_KINDS = frozenset({"qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "qwen2.5o", "paddleocr"})
_WORDS = {MROPE: "M-RoPE positions", NON_CAUSAL: "attention that is not causal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Holds what decides whether a projector and a model belong together."""

    mmproj: str
    model: str
    kind: str  # the projector's type, as its file has it
    is_mrope: bool  # of the model
    has_attention: bool  # the model has some
    is_non_causal: bool  # of the projector's rows


def check_pair(pair: Pair, supports: Collection[str]) -> None:
    """Raises LoadError for rows that the model cannot read, or the decode loop, which does what `supports` names."""
    if pair.kind in MROPE_KINDS and not pair.is_mrope:
        raise LoadError(
            f"the projector {pair.mmproj} ({pair.kind}) is for models with M-RoPE, and the model {pair.model} has "
            "none: use the projector that was made with the model"
        )
    if pair.is_non_causal and not pair.has_attention:
        raise LoadError(
            f"the projector {pair.mmproj} ({pair.kind}) needs attention that is not causal, "
            f"and the model {pair.model} is recurrent: use the projector that was made with the model"
        )
    needs = {MROPE: pair.is_mrope, NON_CAUSAL: pair.is_non_causal}
    missing = [_WORDS[need] for need, is_needed in needs.items() if is_needed and need not in supports]
    if missing:
        raise LoadError(
            f"the projector {pair.mmproj} needs {' and '.join(missing)}, which this version does not support"
        )
