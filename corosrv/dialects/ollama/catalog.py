"""Describes models as Ollama does: what there is, what is loaded, and one model in full. Finds them by its names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from corosrv.base.errors import NotFound
from corosrv.contracts.jobs import ModelCard
from corosrv.dialects.ollama.answers import timestamp
from corosrv.models.plan import ModelState, Standing

if TYPE_CHECKING:
    from corosrv.models.pool import ModelPool

# The release of Ollama whose API this is: clients compare it with the first one that had what they need.
VERSION = "0.12.11"
LATEST = ":latest"
_HUBS = ("hf.co/", "huggingface.co/", "hf:")  # before the name of a repository
FOREVER = 9_999_999_999.0  # seconds since 1970: when a model goes that stays loaded

# Abilities by their names here; the order is Ollama's.
_ABILITIES = {"completion": "completion", "images": "vision", "tools": "tools", "infill": "insert"}


class ModelDetails(msgspec.Struct):
    """Details of a model, as far as they are known; else they are empty."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TaggedModel(msgspec.Struct):
    """A model that is served. The digest is of its name and its file's, not of its content."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class TaggedList(msgspec.Struct):
    models: list[TaggedModel]


class RunningModel(msgspec.Struct):
    """A model that is loaded: the bytes that it takes, and when it is unloaded unless it is asked again."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class RunningList(msgspec.Struct):
    models: list[RunningModel]


class ShownModel(msgspec.Struct):
    """The full description of a model."""

    license: str
    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class ApiVersion(msgspec.Struct):
    """The release of Ollama whose API this server follows, not the version of this server."""

    version: str


class OllamaCatalog:
    """Finds models by the names that Ollama's clients use, and describes them."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    def find(self, name: str) -> ModelCard:
        """Returns the card of a model, loaded or not. Raises NotFound, in Ollama's words."""
        cards = {known: card for card in self._pool.models() for known in (card.id, *card.aliases)}
        for spelling in spellings(name):
            if spelling in cards:
                return cards[spelling]
        if not cards:
            self._pool.check()  # says why there are none
        raise NotFound(f"model '{name[:120]}' not found", "model", "model_not_found")

    def tags(self) -> TaggedList:
        """Lists all models."""
        return TaggedList([self._tag(card) for card in self._pool.models()])

    def running(self, expires_at: Callable[[Standing], float]) -> RunningList:
        """Lists the models that are loaded. `expires_at`: says when one is unloaded, in seconds since 1970."""
        shown = []
        for card in self._pool.models():
            standing = self._pool.standing(card.id)
            if standing.state is ModelState.READY and not card.parent:
                shown.append(self._run(card, standing, expires_at(standing)))
        return RunningList(shown)

    def show(self, card: ModelCard) -> ShownModel:
        """Describes one model; of one that was never loaded, no more than its file's head says."""
        return ShownModel(
            license="",
            modelfile=f"# made by {card.id}'s operator: it is served as it is",
            parameters="",
            template=card.chat_template,
            details=self._details(card),
            model_info=self._info(card),
            capabilities=capabilities(card),
            modified_at=timestamp(card.created),
        )

    def _tag(self, card: ModelCard) -> TaggedModel:
        name = tagged(card.id)
        facts = self._pool.facts(card.id)
        size = 0 if facts is None else facts.size
        return TaggedModel(name, name, timestamp(card.created), size, digest(card), self._details(card))

    def _run(self, card: ModelCard, standing: Standing, expires_at: float) -> RunningModel:
        name, context = tagged(card.id), int(card.meta.get("n_ctx", 0))
        return RunningModel(
            name, name, standing.bytes, digest(card), self._details(card), timestamp(expires_at), 0, context
        )

    def _details(self, card: ModelCard) -> ModelDetails:
        facts = self._pool.facts(card.id)
        family = "" if facts is None else facts.architecture
        n_params = int(card.meta.get("n_params", 0))
        return ModelDetails(
            parent_model=card.parent,
            format="gguf",
            family=family,
            families=[family] if family else [],
            parameter_size=in_words(n_params) if n_params else "",
            quantization_level=str(card.meta.get("ftype", "")),
        )

    def _info(self, card: ModelCard) -> dict[str, Any]:
        """Returns the model's numbers under the keys that its file has for them."""
        facts, meta = self._pool.facts(card.id), card.meta
        family = "unknown" if facts is None else facts.architecture
        numbers = {
            "general.parameter_count": meta.get("n_params"),
            f"{family}.context_length": meta.get("n_ctx_train"),
            f"{family}.embedding_length": meta.get("n_embd"),
            f"{family}.block_count": None if facts is None else facts.n_layers,
            f"{family}.vocab_size": meta.get("n_vocab"),
        }
        known = {name: number for name, number in numbers.items() if number}
        return {"general.architecture": family, "general.basename": card.id, **known}


def spellings(name: str) -> Iterable[str]:
    """Returns the names that a model may have here which a client calls so, the likeliest first."""
    repo = next((name.removeprefix(hub) for hub in _HUBS if name.startswith(hub)), "")
    # Among several models, those of hubs have the names of their repositories without the owners.
    likely = [name, *([repo, repo.partition("/")[2]] if repo else [])]
    return [spelling for bare in likely for spelling in (bare, bare.removesuffix(LATEST), bare + LATEST)]


def tagged(name: str) -> str:
    """Returns a name with a tag, as Ollama's clients expect it of every model."""
    return name if ":" in name else name + LATEST


def digest(card: ModelCard) -> str:
    """Returns 64 hexadecimal digits that tell models apart."""
    return hashlib.sha256(f"{card.id}\0{card.file}".encode("utf-8", "replace")).hexdigest()


def capabilities(card: ModelCard) -> list[str]:
    """Returns what a model can do, in Ollama's words; a model that generates is not called one of embeddings."""
    found = [word for name, word in _ABILITIES.items() if name in card.capabilities]
    if card.reasoning_tags is not None:
        found.append("thinking")
    if not found and "embeddings" in card.capabilities:
        found.append("embedding")
    return found


def in_words(number: int) -> str:
    """Writes a number of parameters as Ollama does: 134.52M, 7.6B."""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.{2 if unit in 'MK' else 1}f}{unit}"
    return str(number)
