"""A vocabulary of bytes, for translations that need to know how a model writes."""

from collections.abc import Iterable, Sequence

from corosrv.base.errors import PromptTooLong, Refused
from corosrv.contracts.jobs import InfillTokens, Messages, Prompt, Text, Tokens

BOS, EOS, PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE = range(256, 263)
_MARKS = {
    BOS: "<s>",
    EOS: "</s>",
    PREFIX: "<pre>",
    SUFFIX: "<suf>",
    MIDDLE: "<mid>",
    REPOSITORY: "<rep>",
    FILE: "<sep>",
}


class ByteVocabulary:
    """A corosrv.contracts.jobs.Vocabulary with a token for each byte. Texts of more than `longest` bytes are too
    long.
    """

    size = 263
    end_tokens: tuple[int, ...] = (EOS,)

    def __init__(self, infill: InfillTokens | None = None, adds_bos: bool = False, longest: int = 1000) -> None:
        self.infill = infill
        self._adds_bos = adds_bos
        self._longest = longest

    def tokenize(self, text: str, add_special: bool, parse_special: bool, param: str = "content") -> list[int]:
        if len(text) > self._longest:
            raise PromptTooLong(len(text), self._longest, param)
        tokens = [BOS] if add_special and self._adds_bos else []
        pieces = [text]
        if parse_special:
            for mark, spelled in _MARKS.items():
                pieces = [part for piece in pieces for part in _split(piece, spelled, mark)]
        return tokens + [token for piece in pieces for token in ([piece] if isinstance(piece, int) else piece.encode())]

    def piece(self, token: int) -> bytes:
        if not 0 <= token < self.size:
            raise Refused(f"tokens: {token} is no token id of this model", "tokens")
        return bytes([token]) if token < BOS else _MARKS[token].encode()

    def is_hidden(self, token: int) -> bool:
        return token >= BOS

    def spell(self, tokens: Iterable[int]) -> bytes:
        return b"".join(map(self.piece, tokens))

    def render(self, prompt: Messages) -> str:
        return "".join(f"<s>{message['content']}" for message in prompt.messages)

    def count(self, prompt: Prompt) -> int:
        return len(self.encode(prompt))

    def encode(self, prompt: Prompt, number: int = 0, n_prompts: int = 1) -> Sequence[int]:
        if isinstance(prompt, Tokens):
            return prompt.ids
        text = prompt.text if isinstance(prompt, Text) else self.render(prompt)
        return self.tokenize(text, True, True, "prompt" if n_prompts == 1 else f"prompt[{number}]")


def _split(piece: "str | int", spelled: str, mark: int) -> "list[str | int]":
    if isinstance(piece, int):
        return [piece]
    parts: list[str | int] = []
    for text in piece.split(spelled):
        parts += [text, mark]
    return [part for part in parts[:-1] if part != ""]


INFILL = InfillTokens(PREFIX, SUFFIX, MIDDLE)
REPOSITORY_INFILL = InfillTokens(PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE)
