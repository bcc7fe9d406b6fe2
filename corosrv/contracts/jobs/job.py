"""Jobs, which adapters submit: prompts, and what is to be made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from corosrv.contracts.jobs.pieces import Image, Pieces, Tokens
from corosrv.contracts.jobs.sampling import Sampling
from corosrv.contracts.jobs.terms import Terms


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt as it stands; control markers in it are control tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class MultimodalText:
    """A prompt of text and images, in order; control markers in the texts are control tokens. Some part is an image."""

    parts: tuple[str | Image, ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """A conversation, to be rendered by the model's chat template. Markers in the contents stay text.

    `messages` and `tools` are as OpenAI's chat API has them: roles system, user, assistant (with `tool_calls` and
    `reasoning_content`) and tool; contents are strings, or tuples of strings and Images where a user's message has
    images. Arguments of calls are objects; those of a call that was cut off are its JSON text as far as it goes. A
    template that knows no tools is helped: what it would drop is written into the messages, in the way that
    ModelCard.call_format says.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final: bool = False  # the last message is the beginning of the answer
    param: str = "messages"  # what the client's body calls it, for errors
    template_arguments: dict[str, Any] = field(default_factory=dict)


Prompt = Text | Tokens | Messages | MultimodalText | Pieces


@dataclass(frozen=True, slots=True)
class Job:
    """Asks for `n` answers to each prompt. Task number = prompt number * n + answer number."""

    prompts: tuple[Prompt, ...]
    n: int = 1
    max_tokens: int | None = None  # None: until the context is full
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    share_prefix: bool = True  # begin from what was computed before, and leave behind what is computed now
    model: str | None = None  # the capability wanted; None takes what there is
    scores_prompt: bool = False  # the first chunks carry `prompt_info`
    tells_progress: bool = False  # chunks with `read_tokens` come before the prompt is read, and after each piece
    # Where the model's context is shifted when it is full:
    n_keep: int = 0  # first tokens that stay; -1 is all of the prompt
    n_discard: int = 0  # tokens behind them that go; 0 is half
    max_ms: float = 0.0  # of generating, from the first token on; then LENGTH. 0: no limit
    slot: int = -1  # where it has to run; -1: anywhere
    stream: bool = False  # the answer is sent while it is generated
    lora: tuple[tuple[int, float], ...] | None = None  # adapter number and scale; None: as the server is set
    terms: Terms = field(default_factory=Terms)

    @property
    def n_tasks(self) -> int:
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True)
class EmbedJob:
    """Turns each prompt into a vector: one task, and one terminal chunk with `vector`, for each."""

    prompts: tuple[Prompt, ...]
    normalize: int = 2  # -1: as it is; 0: largest number is 32760; 2: Euclidean; p: p-norm
    pooling: bool = True  # False: a vector for every token, one behind the other
    model: str | None = None
    terms: Terms = field(default_factory=Terms)

    @property
    def n_tasks(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True, slots=True)
class RerankJob:
    """Scores each document for the query: one task, and one terminal chunk with a `vector` of one number, for each."""

    query: str
    documents: tuple[str, ...]
    model: str | None = None
    terms: Terms = field(default_factory=Terms)

    @property
    def n_tasks(self) -> int:
        return len(self.documents)


AnyJob = Job | EmbedJob | RerankJob


@dataclass(frozen=True, slots=True)
class PredictJob:
    """One call of a predictor. Its reader gives messages of corosrv.workers.wire.messages, Done, Failed or Cancelled
    last.
    """

    id: str
    input: Mapping[str, Any]  # validated, with its defaults
    output_dir: str  # for its files; made by whoever has some, removed by whoever submits
    context: Mapping[str, str] = field(default_factory=dict)
