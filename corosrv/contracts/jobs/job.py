"""Jobs, which dialects submit to workers: a prompt, the terms on which it waits, and how its answer is drawn.

A prompt is text, token ids, a conversation, or pieces of token ids and embedding rows, where an image or a client put
rows. `Terms` say who asks, how urgent it is, and until when the answer is of use.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corosrv.contracts.jobs.terms import Terms


def new_id(prefix: str) -> str:
    """Returns a name that no other request or answer has. No secret: who has seen hundreds can tell the next one.

    Python seeds the generator anew in each forked process. The system's own would cost a system call each time.
    """
    return f"{prefix}{random.getrandbits(128):032x}"


# What `Sampling.samplers` may name, in the order that they are applied by default.
SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"
)  # fmt: skip
# llama-server's letters for the samplers, and names that they also go by.
_LETTERS = dict(zip("edskypmxta", SAMPLERS, strict=True))
_SYNONYMS = {"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature", "nucleus": "top_p"}
# What editors name for infilling, by word and by letter. It is no sampler here: the others draw, and the answer's
# settings say which these were.
_PASSED_OVER = ("infill", "i")


def sampler_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Reads samplers, each once, from names or from a string of llama-server's letters. Raises ValueError."""
    requested = [name for name in names if name not in _PASSED_OVER]
    if isinstance(names, str):
        samplers = [_LETTERS.get(letter, "") for letter in requested]
    else:
        samplers = [_SYNONYMS.get(name.replace("-", "_"), name.replace("-", "_")) for name in requested]
    unknown = next((name for name, sampler in zip(requested, samplers, strict=True) if sampler not in SAMPLERS), None)
    if unknown is not None:
        raise ValueError(f"'{unknown[:40]}' is none of {', '.join(SAMPLERS)}, and no letter of {''.join(_LETTERS)}")
    return tuple(dict.fromkeys(samplers))


@dataclass(frozen=True, slots=True)
class ThoughtBudget:
    """Limits the tokens of an answer's thoughts, and says how the engine ends those that have spent them."""

    tokens: int
    closing: str  # the text that ends thoughts
    opening: str = ""  # the text that begins them; empty: the prompt has begun them
    message: str = ""  # the last words of thoughts that are ended
    rest: str = ""  # what is written behind the closing then
    ending: tuple[int, ...] = ()  # the tokens of these three texts, which the engine fills in


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters by which tokens are drawn: bias first, then `samplers` in their order, then temperature 0 or a draw.

    The grammar looks at what top_k leaves. One that allows none of these tokens goes before them, and they are the
    best of what it allows.
    """

    temperature: float = 0.8  # 0 is greedy
    top_k: int = 40  # 0 keeps all
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64  # tokens that the penalties look back on; -1 is the context
    seed: int | None = None  # None is random
    ignore_eos: bool = False
    # Token id, or a text for all its tokens; and what is added to the logit: -inf bans it.
    logit_bias: tuple[tuple[int | str, float], ...] = ()
    grammar: str = ""  # GBNF that the text follows; empty: any text
    grammar_param: str = "grammar"  # the client's field that the grammar comes from, for errors; empty: the operator's
    grammar_triggers: tuple[str, ...] = ()  # the grammar begins with the first of these in the text; (): at once
    top_n_sigma: float = -1.0  # -1 is off
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64  # -1 is the context
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0  # 0 is off; 1 and 2 take the place of the samplers behind the penalties
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0  # -1 is off
    adaptive_decay: float = 0.9
    min_keep: int = 0
    samplers: tuple[str, ...] = SAMPLERS
    thoughts: ThoughtBudget | None = None  # None: as many as the model likes
    n_probs: int = -1  # how many of the likeliest tokens each TokenInfo lists; -1: chunks carry no TokenInfo
    post_sampling_probs: bool = False  # of the distribution that was drawn from, not of the model's own

    @property
    def has_own_grammar(self) -> bool:
        """Tells whether the request brought the grammar: no other form may take its place."""
        return bool(self.grammar and self.grammar_param)


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values for fields that a request leaves out."""

    max_tokens: int | None = None
    temperature: float = 0.8
    seed: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)  # of Sampling, by its names
    stop: tuple[str, ...] = ()
    n_keep: int = 0
    share_prefix: bool = True
    normalize: int = 2  # of embeddings; see EmbedJob

    def sampling(self) -> Sampling:
        """Returns how an answer is drawn whose request says nothing of it."""
        return Sampling(temperature=self.temperature, seed=self.seed, **self.more)


FLOAT_BYTES = 4  # of a number in a row: rows are of little-endian float32
POSITION_BYTES = 16  # of a row's position: four of little-endian int32


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt, or a piece of one, as token ids."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Holds `n` embedding rows, which stand in a prompt in place of as many tokens.

    `data` is n x width numbers of little-endian float32 in C order; `width` is what the model wants
    (ModelCard.row_width). `sha256`, 64 lower-case hexadecimal digits, is of `data`, and never of an image that the rows
    were made of: prompts whose rows have the same, and are read alike, share what is computed of them.

    How the model reads the rows: `is_non_causal`, each sees all of them, so that they have to fit into one step;
    `positions`, of models with M-RoPE, four numbers of little-endian int32 for each row (t, y, x, z: libllama's order),
    of which t, y and x count from the first position of the rows; `n_positions`, by how much the positions of the
    sequence move then. Without them rows stand one after another, as tokens do.

    Raises ValueError for a size that is not as `n` and `width` say.
    """

    sha256: str
    data: bytes
    n: int
    width: int
    is_non_causal: bool = False
    n_positions: int = 0
    positions: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.n < 1 or self.width < 1 or len(self.data) != FLOAT_BYTES * self.n * self.width:
            raise ValueError(f"{self.n} rows of {self.width} numbers do not have {len(self.data)} bytes")
        if self.positions and len(self.positions) != POSITION_BYTES * self.n:
            raise ValueError(f"{self.n} rows do not have positions of {len(self.positions)} bytes")

    @classmethod
    def of_data(
        cls, data: bytes, width: int, *, is_non_causal: bool = False, n_positions: int = 0, positions: bytes = b""
    ) -> Rows:
        """Counts and hashes the rows in `data`; takes half a millisecond for a megabyte."""
        n = len(data) // (FLOAT_BYTES * width) if width > 0 else 0
        return cls(hashlib.sha256(data).hexdigest(), data, n, width, is_non_causal, n_positions, positions)

    @property
    def is_read_as_tokens(self) -> bool:
        """Returns whether each row stands behind the one before, and sees what came before it."""
        return not (self.is_non_causal or self.positions)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A prompt of token ids and embedding rows, in order. Nothing is put before, between or behind its pieces."""

    pieces: tuple[Tokens | Rows, ...]

    @property
    def n_tokens(self) -> int:
        """Counts the places that the prompt takes in a context: a token or a row each."""
        return sum(piece.n if isinstance(piece, Rows) else len(piece.ids) for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a conversation, decoded: `pixels` are RGB, 3 x width x height bytes, row by row from the top.

    `sha256`, 64 lower-case hexadecimal digits, is of the width and the height as four little-endian bytes each and
    then of the pixels. Raises ValueError for a size that is not as `width` and `height` say.
    """

    sha256: str
    width: int
    height: int
    pixels: bytes = field(repr=False)
    file: bytes = field(default=b"", compare=False, repr=False)  # that was decoded, where it is to be stored
    lease: object = field(default=None, compare=False, repr=False)  # ends with the image: see corosrv.images.reader

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1 or len(self.pixels) != 3 * self.width * self.height:
            raise ValueError(f"an image of {self.width} x {self.height} pixels does not have {len(self.pixels)} bytes")

    @classmethod
    def of_pixels(cls, width: int, height: int, pixels: bytes) -> Image:
        """Hashes the pixels; takes half a millisecond for a megabyte."""
        digest = hashlib.sha256(width.to_bytes(4, "little") + height.to_bytes(4, "little"))
        digest.update(pixels)
        return cls(digest.hexdigest(), width, height, pixels)


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt as it stands; control markers in it are control tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class MultimodalText:
    """A prompt of text and images, in order; control markers in the texts are control tokens. Some part is an image."""

    parts: tuple[str | Image, ...]


_ARGUMENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED_ARGUMENTS = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template",
     "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler",
     "joiner", "caller", "loop", "self")
)  # fmt: skip
_MAX_ARGUMENT = 1024  # characters


def check_template_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments: none takes the place of what the server tells the template. Raises ValueError."""
    for name, value in arguments.items():
        shown = name[:64]
        if not _ARGUMENT_NAME.fullmatch(name) or name in _RESERVED_ARGUMENTS:
            raise ValueError(f"{shown} is no name for a template argument")
        if not isinstance(value, (str, int, float, bool, type(None))) or len(str(value)) > _MAX_ARGUMENT:
            raise ValueError(f"{shown} must be a scalar of at most {_MAX_ARGUMENT} characters")
        if name in ("enable_thinking", "thinking") and not isinstance(value, bool):
            raise ValueError(f"{shown} must be true or false")
    return arguments


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
    continue_thoughts: bool = False  # with continue_final: it ends within its thoughts, and has no text
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
    prediction: str = ""  # the text that much of each answer is expected to be, which makes it come sooner
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
    begun: tuple[int, ...] = ()  # tokens behind the prompt that were generated before: each answer begins with them
    told_bytes: int = 0  # of their text that no answer repeats
    tells_ids: bool = False  # chunks have `ids`
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
    lora: tuple[tuple[int, float], ...] | None = None  # as in Job
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
    lora: tuple[tuple[int, float], ...] | None = None  # as in Job
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
