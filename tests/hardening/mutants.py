"""Model files of which one thing is wrong, each served beside a good model, which has to answer all the while.

`python -m tests.hardening.mutants [--first N] [--count N] [NAME ...]` serves 200 of them, and prints the outcomes.
"""

from __future__ import annotations

import argparse
import math
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from tests.hardening.watch import HealthWatch
from tests.serve.server import Server, Servers, servers
from tests.serve.wire import chat
from tests.support.gguf import write_llama
from tests.support.waiting import eventually

COUNT = 200
BATCH = 20  # mutants that one server is given
PATIENCE = 300.0  # seconds until an answer is missing
FAILS = "the server fails"

_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_NUMBERS = {"I": (0, 1, 3, 7, 600, 2**31 - 1, 2**31, 2**32 - 1), "f": (0.0, -1.0, 1e38, float("nan"), float("inf"))}
_TYPES = (1, 2, 8, 10, 14, 17, 24, 30, 31, 39, 41, 200, 2**32 - 1)  # of a tensor's numbers; it is 0
# Numbers in a block and its bytes, of types that a row of 32 numbers may have, and of some that it may not.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 12: (256, 144),
    20: (32, 18), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2), 34: (256, 54), 39: (32, 17),
}  # fmt: skip
_WEIGHTS = {"nan": float("nan"), "inf": float("inf"), "huge": 3e38}


@dataclass(frozen=True, slots=True)
class Pair:
    """A key of the head, and where its value is."""

    key: str
    kind: int
    kind_at: int
    value_at: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of the head, and where what is said of it is."""

    name: str
    shape: tuple[int, ...]
    name_at: int
    shape_at: int  # of the number of dimensions, which these follow

    @property
    def type_at(self) -> int:
        return self.shape_at + 4 + 8 * len(self.shape)

    @property
    def offset_at(self) -> int:
        return self.type_at + 4


@dataclass
class Head:
    """The places of a GGUF's head, which has to be well-formed."""

    data: bytes
    pairs: list[Pair] = field(default_factory=list)
    tensors: list[TensorEntry] = field(default_factory=list)
    end: int = 0  # of the last tensor's entry

    def __post_init__(self) -> None:
        self._at = 8
        n_tensors, n_pairs = self._take("QQ")
        for _ in range(n_pairs):
            key, kind_at = self._text(), self._at
            (kind,) = self._take("I")
            self.pairs.append(Pair(key, kind, kind_at, self._at))
            self._skip(kind)
        for _ in range(n_tensors):
            name_at = self._at + 8
            name, shape_at = self._text(), self._at
            (n_dimensions,) = self._take("I")
            shape = self._take(f"{n_dimensions}Q")
            self.tensors.append(TensorEntry(name, shape, name_at, shape_at))
            self._take("IQ")
        self.end = self._at

    def _take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{form}", self.data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return values

    def _text(self) -> str:
        (size,) = self._take("Q")
        self._at += size
        return self.data[self._at - size : self._at].decode()

    def _skip(self, kind: int) -> None:
        if kind == _STRING:
            self._text()
        elif kind == _ARRAY:
            kind, count = self._take("IQ")
            for _ in range(count):
                self._skip(kind)
        else:
            self._take(_FIXED[kind])


@dataclass(frozen=True, slots=True)
class Mutant:
    """A model file and what is wrong with it."""

    name: str
    content: bytes


def good_model(path: Path) -> Path:
    """Writes a model of bytes with a template, marks of turns, and all keys that mutants change."""
    return write_llama(
        path,
        special=("<|im_start|>", "<|im_end|>", "<fim>"),
        **{
            "general.alignment": 32,
            "llama.attention.head_count_kv": 2,
            "llama.rope.freq_base": 10000.0,
            "llama.vocab_size": 262,
            "llama.expert_count": 0,
            "llama.expert_used_count": 0,
            "llama.attention.key_length": 16,
            "llama.attention.value_length": 16,
            "tokenizer.ggml.eot_token_id": 260,
            "tokenizer.ggml.fim_pre_token_id": 261,
            "tokenizer.ggml.fim_suf_token_id": 261,
            "tokenizer.ggml.fim_mid_token_id": 261,
            "tokenizer.ggml.padding_token_id": 0,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
        },
    )


def patched(data: bytes, at: int, form: str, *values: float) -> bytes:
    """Returns the data with these numbers at a place."""
    packed = struct.pack(f"<{form}", *values)
    return data[:at] + packed + data[at + len(packed) :]


def all_mutants(folder: Path) -> list[Mutant]:
    """Makes all mutants that are known, those of each kind in turn, in an order that is the same each time."""
    data = good_model(folder / "good.gguf").read_bytes()
    head = Head(data)
    parts = (
        _frames(head), _values(head), _texts(head), _lists(head), _tensors(head), _weights(head), _retyped(head),
        _reshaped(head), ((f"flip-{seed}", _flipped(head, seed)) for seed in range(COUNT)),
    )  # fmt: skip
    kinds = [[*part] for part in parts]
    for kind in kinds:
        random.Random(1).shuffle(kind)
    mixed = (pair for turn in zip_longest(*kinds) for pair in turn if pair is not None)
    return [Mutant(name, content) for name, content in dict(mixed).items()]


def chosen(mutants: Sequence[Mutant], names: Iterable[str]) -> list[Mutant]:
    """Returns the mutants of these names, in the order of the names."""
    by_name = {mutant.name: mutant for mutant in mutants}
    return [by_name[name] for name in names]


def _frames(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yields files that are cut, and such whose first numbers are wrong."""
    data = head.data
    for place in (3, 20, 24, head.pairs[3].value_at, head.pairs[-1].value_at + 9, head.tensors[2].type_at, head.end):
        yield f"cut-at-{place}", data[:place]
    yield "cut-in-weights", data[: (head.end + len(data)) // 2]
    yield "cut-last-byte", data[:-1]
    yield "magic", b"GGML" + data[4:]
    for version in (0, 1, 2, 4, 0x03000000):
        yield f"version-{version}", patched(data, 4, "I", version)
    for name, at in (("tensors", 8), ("pairs", 16)):
        (count,) = struct.unpack_from("<Q", data, at)
        for wrong in (0, count - 1, count + 1, 2**40, 2**63, 2**64 - 1):
            yield f"{name}-{wrong}", patched(data, at, "Q", wrong)


def _values(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yields files with a number, or the kind of a value, that is wrong."""
    for pair in head.pairs:
        form = _FIXED.get(pair.kind, "")
        for wrong in _NUMBERS.get(form, ()):
            yield f"{pair.key}={wrong}", patched(head.data, pair.value_at, form, wrong)
        for kind in (6, 7, 10, _STRING, _ARRAY, 99):
            if pair.kind != kind and pair.key.endswith(("count", "length", "id", "tokens", "architecture", "type")):
                yield f"{pair.key}-kind-{kind}", patched(head.data, pair.kind_at, "I", kind)


def _texts(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yields files with another architecture or vocabulary, and texts that are no text."""
    by_key = {pair.key: pair.value_at for pair in head.pairs}
    for architecture in ("bert", "gpt2", "mamba", "qwen2", "gemma", "t5", "rwkv6", "", "nothing", "clip"):
        yield f"architecture-{architecture}", _with_text(head.data, by_key["general.architecture"], architecture)
    for model in ("gpt2", "bert", "t5", "rwkv", "none", "no_vocab", "plamo2", ""):
        yield f"tokenizer-{model}", _with_text(head.data, by_key["tokenizer.ggml.model"], model)
    template = by_key["tokenizer.chat_template"]
    loops = "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}"
    texts = {"braces": "{{" * 9, "endless": loops, "long": "{{ 1 }}" * 99_999, "nul": "a\0b{{ 1 }}"}
    for name, text in texts.items():
        yield f"template-{name}", _with_text(head.data, template, text)
    yield "template-no-utf8", patched(head.data, template + 8, "4B", 0xFF, 0xFE, 0xC0, 0x80)
    yield "template-length", patched(head.data, template, "Q", 2**62)


def _with_text(data: bytes, at: int, text: str) -> bytes:
    """Returns the data with another text at a place; the weights stay where they are aligned."""
    (size,) = struct.unpack_from("<Q", data, at)
    head_end = Head(data).end
    head = data[:at] + struct.pack("<Q", len(text)) + text.encode() + data[at + 8 + size : head_end]
    body = data[head_end + -head_end % 32 :]
    return head + bytes(-len(head) % 32) + body


def _lists(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yields files whose vocabulary is wrong."""
    data = head.data
    for pair in head.pairs:
        if pair.kind != _ARRAY:
            continue
        kind, count = struct.unpack_from("<IQ", data, pair.value_at)
        for wrong in (0, count - 1, count + 1, 2**34, 2**64 - 1):
            yield f"{pair.key}-has-{wrong}", patched(data, pair.value_at + 4, "Q", wrong)
        items = pair.value_at + 12
        yield f"{pair.key}-of-{kind ^ 1}", patched(data, pair.value_at, "I", kind ^ 1)
        if kind == 6:
            yield f"{pair.key}-nan", patched(data, items, f"{count}f", *[float("nan")] * count)
            yield f"{pair.key}-ordered", patched(data, items, f"{count}f", *map(float, range(count)))
        elif kind == 5:
            for wrong in (0, 1, 3, 6, 99, -1):
                yield f"{pair.key}-all-{wrong}", patched(data, items, f"{count}i", *[wrong] * count)
        elif kind == _STRING:
            yield f"{pair.key}-no-utf8", patched(data, items + 8, "5B", 0xFF, 0xFE, 0x80, 0x80, 0xC0)
            yield f"{pair.key}-no-bytes", data.replace(b"<0x", b"<0y")
            yield f"{pair.key}-alike", data.replace(b"<0x4", b"<0x5")


def _tensors(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yields files in which a tensor's entry is wrong."""
    data = head.data
    for tensor in head.tensors[:4] + head.tensors[-2:]:
        for kind in _TYPES:
            yield f"{tensor.name}-type-{kind}", patched(data, tensor.type_at, "I", kind)
        for offset in (1, 32, 2**20, 2**40, 2**63, 2**64 - 32):
            yield f"{tensor.name}-offset-{offset}", patched(data, tensor.offset_at, "Q", offset)
        for n_dimensions in (0, 1, 3, 4, 5, 100, 2**31):
            if n_dimensions != len(tensor.shape):
                yield f"{tensor.name}-dimensions-{n_dimensions}", patched(data, tensor.shape_at, "I", n_dimensions)
        for number, extent in enumerate(tensor.shape):
            for wrong in (0, 1, extent - 1, extent + 1, extent * 2, 2**31, 2**62, 2**64 - 1):
                at = tensor.shape_at + 4 + 8 * number
                yield f"{tensor.name}-extent-{number}-{wrong}", patched(data, at, "Q", wrong)
        yield f"{tensor.name}-name", patched(data, tensor.name_at, "B", ord("X"))
    first, second = head.tensors[3], head.tensors[4]
    if len(first.name) == len(second.name):
        yield "tensor-twice", data[: second.name_at] + first.name.encode() + data[second.name_at + len(first.name) :]


def _weights(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yields files with numbers in a tensor that no training leaves there."""
    begin = head.end + -head.end % 32
    for tensor in (head.tensors[0], head.tensors[2], head.tensors[-1]):
        (offset,) = struct.unpack_from("<Q", head.data, tensor.offset_at)
        for name, value in _WEIGHTS.items():
            yield f"{tensor.name}-{name}", patched(head.data, begin + offset, "32f", *[value] * 32)


def _retyped(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yields files that are well-formed, and of which a tensor has random numbers of another type."""
    for name in ("token_embd.weight", "output.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight",
                 "blk.0.ffn_norm.weight", "output_norm.weight"):  # fmt: skip
        shape = next(tensor.shape for tensor in head.tensors if tensor.name == name)
        for kind in _BLOCKS:
            yield f"{name}-made-{kind}", _rebuilt(head, name, kind, shape)


def _reshaped(head: Head) -> Iterator[tuple[str, bytes]]:
    """Yields files that are well-formed, and of which a tensor has another shape, is missing or is one too many."""
    for tensor in (*head.tensors[:7], head.tensors[-1]):
        first, *others = tensor.shape
        shapes = [(first // 2, *others), (first * 2, *others), (first, *others, 2), (*others, first), (1,), (first,)]
        shapes += [(first, others[0] - 2), (first, 1)] if others else []
        for shape in shapes:
            yield f"{tensor.name}-shaped-{shape}", _rebuilt(head, tensor.name, 0, shape)
        yield f"{tensor.name}-missing", _rebuilt(head, tensor.name, 0, None)
    for name in ("rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "blk.0.ffn_gate_inp.weight"):
        for shape in ((8,), (7,), (32,), (32, 32), (1,)):
            yield f"{name}-added-{shape}", _rebuilt(head, name, 0, shape)


def _rebuilt(head: Head, name: str, kind: int, shape: tuple[int, ...] | None) -> bytes:
    """Returns the file with one tensor made anew, added at the end, or left out where it has no shape."""
    tensors = {tensor.name: (tensor.shape, 0, _body(head, tensor)) for tensor in head.tensors}
    tensors.pop(name) if shape is None else tensors.update({name: (shape, kind, _random_body(kind, shape))})
    entries, bodies = b"", b""
    for its_name, (its_shape, its_kind, body) in tensors.items():
        extents = struct.pack(f"<I{len(its_shape)}Q", len(its_shape), *its_shape)
        entries += struct.pack("<Q", len(its_name)) + its_name.encode() + extents
        entries += struct.pack("<IQ", its_kind, len(bodies))
        bodies += body + bytes(-len(body) % 32)
    begin = patched(head.data[: head.tensors[0].name_at - 8], 8, "Q", len(tensors)) + entries
    return begin + bytes(-len(begin) % 32) + bodies


def _body(head: Head, tensor: TensorEntry) -> bytes:
    (offset,) = struct.unpack_from("<Q", head.data, tensor.offset_at)
    at = head.end + -head.end % 32 + offset
    return head.data[at : at + 4 * math.prod(tensor.shape)]


def _random_body(kind: int, shape: tuple[int, ...]) -> bytes:
    n_numbers, n_bytes = _BLOCKS[kind]
    return random.Random(kind).randbytes(math.prod(shape) // n_numbers * n_bytes)


def _flipped(head: Head, seed: int) -> bytes:
    """Returns the data with a few bytes of its head changed at random."""
    draw = random.Random(seed)
    data = bytearray(head.data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        data[draw.randrange(4, head.end)] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
    return bytes(data)


def serve(started: Servers, mutants: Sequence[Mutant], folder: Path) -> Iterator[tuple[Mutant, str]]:
    """Serves mutants beside a good model, and yields what became of each.

    Raises AssertionError or OSError, with the mutant not yielded, where the server suffers.
    """
    models = [f"good={good_model(folder / 'good.gguf')}"]
    for number, mutant in enumerate(mutants):
        path = folder / f"bad-{number}.gguf"
        path.write_bytes(mutant.content)
        models.append(f"bad-{number}={path}")
    server = started.start(model=",".join(models), slots=2, ctx=128, threads=1, wait_for=None)
    eventually(lambda: server.health() == "ok", PATIENCE, f"health ok\n{server.log}")
    worker = server.worker.pid
    for number, mutant in enumerate(mutants):
        with HealthWatch(server):
            outcome = _outcome(server, f"bad-{number}")
            _check_good(server, worker)
        yield mutant, outcome
    server.stop()


def _outcome(server: Server, model: str) -> str:
    """Asks a model for all that touches its vocabulary and weights; returns the first refusal, or `serves`."""
    requests = (
        ("/v1/completions", {"prompt": "abc", "max_tokens": 4, "logprobs": 2}),
        ("/v1/chat/completions", chat("abc", max_tokens=4)),
        ("/v1/completions", {"prompt": "a" * 100, "max_tokens": 40, "temperature": 1.5, "seed": 1}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 4, "grammar": 'root ::= "yes" | "no"'}),
        ("/v1/embeddings", {"input": "abc"}),
        ("/tokenize", {"content": "<|im_start|>abc\xff</s>", "add_special": True, "with_pieces": True}),
        ("/detokenize", {"tokens": [0, 1, 2, 3, 200, 261]}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 4}),
    )
    outcome = "serves"
    for path, body in requests:
        with server.connect(timeout=PATIENCE) as connection:
            answer = connection.post({"model": model, **body}, path)
        if answer.status == 503:  # it is not loaded, and asking for more would change nothing
            return f"is refused: {answer.error['message']}"
        if answer.status >= 500 and answer.status != 501 and outcome == "serves":
            outcome = f"answers with {answer.status}: {path}: {answer.body[:200].decode(errors='replace')}"
    return outcome


def _check_good(server: Server, worker: int) -> None:
    with server.connect(timeout=PATIENCE) as connection:
        answer = connection.post(chat("abc", model="good", max_tokens=4, temperature=0))
    assert answer.status == 200, f"`good` answers {answer.status}: {answer.body[:300]!r}"
    assert server.worker.pid == worker, "the worker was replaced"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("names", nargs="*", metavar="NAME", help="serve these alone")
    options = parser.parse_args()
    totals, began = Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mutants = all_mutants(folder)
        served = chosen(mutants, options.names) or mutants[options.first : options.first + options.count]
        for mutant, outcome in _serve_all(served, folder):
            totals[outcome.partition(":")[0]] += 1
            print(f"{mutant.name}: {outcome}", flush=True)
    print(f"{len(served)} mutants in {time.monotonic() - began:.0f} s: {dict(totals)}")
    return 1 if totals[FAILS] else 0


def _serve_all(mutants: Sequence[Mutant], folder: Path) -> Iterator[tuple[Mutant, str]]:
    """Serves mutants with as many servers as it takes: one that suffers is replaced."""
    at = 0
    while at < len(mutants):
        with servers(folder, folder / "cache") as started:
            try:
                for mutant, outcome in serve(started, mutants[at : at + BATCH], folder):
                    yield mutant, outcome
                    at += 1
            except (AssertionError, OSError) as error:
                yield mutants[at], f"{FAILS}: {error!r}"[:2000]
                at += 1


if __name__ == "__main__":
    sys.exit(main())
