"""Texts to tokens and back: the model's vocabulary, its chat template, and what fits into its context."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corosrv.base import errors, waits
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Image, Messages, MultimodalText, Pieces, Prompt, Text, Tokens
from corosrv.models.engine.binding import ModelInfo, TokenCalls
from corosrv.models.engine.chat import CHATML, ChatTemplate, texts_of
from corosrv.models.engine.marks import ImagePlaces, Piece, builtin_name
from corosrv.models.engine.template_trial import TemplateCase
from corosrv.models.engine.template_verdicts import template_findings
from corosrv.models.engine.traits import Traits

log = logging.getLogger("corosrv.engine")

# A text longer than this many times the context cannot fit, whatever its tokens: refused before it is tokenised.
_MAX_BYTES_PER_TOKEN = 16
# What a token has on average, for the error's estimate.
_BYTES_PER_TOKEN = 4
# Texts up to this size are tokenised at once (some 0.2 ms); longer ones in the thread pool.
_SHORT_BYTES = 4096
ROW_ID = -1  # of any embedding row, before it gets the private id of its content
_TOKENS_OF_A_TURN = 256  # that are spelled before the clock is looked at


def _param(field: str, number: int, count: int) -> str:
    return field if count == 1 else f"{field}[{number}]"


def _param_of(prompt: Prompt, number: int, n_prompts: int) -> str:
    return prompt.param if isinstance(prompt, Messages) else _param("prompt", number, n_prompts)


class EngineVocabulary:
    """One loaded model's; see corosrv.contracts.jobs.Vocabulary for the contract. Usable from any thread, as its engine
    is.
    """

    def __init__(
        self,
        native: TokenCalls,
        info: ModelInfo,
        template: str = "",
        arguments: Mapping[str, Any] | None = None,
        has_safe_template: bool = False,
    ) -> None:
        """`template`: instead of the model's own, or the one for models that carry none; `arguments`: see ChatTemplate.

        `has_safe_template`: whether the model's own was not written by a stranger, and so needs no trial. Waits for the
        child process that tries a template not seen before.
        """
        self._native = native
        self._info = info
        self.size = info.n_vocab
        self.bos = self._text(info.bos)
        self.eos = self._text(info.eos)
        self.end_tokens = tuple(native.end_tokens())
        self.infill = info.infill
        self.chat_template = template or info.chat_template or (CHATML if info.generates else "")
        controls = {token: text for token in native.control_tokens() if (text := self._text(token))}
        self._markers = list(controls.values())
        hidden = {token: text for token, text in controls.items() if not native.token_text(token)}
        self._template: ChatTemplate | None = None
        self._no_template = "this model has no chat template, for it generates nothing"
        if self.chat_template:
            is_safe = self.chat_template == CHATML or (has_safe_template and not template)
            self._read_template(self.chat_template, arguments or {}, hidden, is_safe)

    def _read_template(
        self, source: str, arguments: Mapping[str, Any], hidden: Mapping[int, str], is_safe: bool
    ) -> None:
        """Reads the template. One that cannot be used takes conversations from the model, and nothing else.

        `hidden`: the control tokens that add nothing to the text of an answer; those that mark calls and thoughts are
        made to.
        """
        special = {"bos_token": self.bos, "eos_token": self.eos}
        try:
            ends = [text for token in self.end_tokens if (text := self._text(token))]
            marks = {token: text for token, text in hidden.items() if token not in self.end_tokens}
            case = TemplateCase(source, special, tuple(ends), tuple(marks.values()))
            is_safe = is_safe or builtin_name(source) is not None
            self._template = waits.call_in_thread(
                ChatTemplate, source, self._markers, special, case.limits, arguments, case.end_texts, case.hidden_texts,
                None if is_safe else template_findings(case),
            )  # fmt: skip
            shown = self._template.traits.marks
            self._native.show_tokens([token for token, text in marks.items() if text in shown])
        except errors.Refused as error:
            self._no_template = str(error)
            log.error("no conversations with this model: %s", error)

    @property
    def traits(self) -> Traits | None:
        """The chat template's abilities; None where no template can be used."""
        return None if self._template is None else self._template.traits

    @property
    def template_abilities(self) -> frozenset[str]:
        traits = self.traits or Traits()
        abilities = {
            "system": traits.has_system,
            "tools": traits.shows_tools,
            "calls": traits.shows_calls,
            "results": traits.shows_results,
            "reasoning": traits.thought_tags is not None,
        }
        return frozenset(name for name, is_there in abilities.items() if is_there)

    def _text(self, token: int) -> str:
        return self._native.token_text(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def piece(self, token: int) -> bytes:
        self.check(token, "tokens")
        return self._native.token_text(token, special=True)

    def is_hidden(self, token: int) -> bool:
        return token in self.end_tokens or not self._native.token_text(token)

    def spell(self, tokens: Iterable[int]) -> bytes:
        turns, text = Turns(), bytearray()
        for number, token in enumerate(tokens):
            text += self.piece(token)
            if number % _TOKENS_OF_A_TURN == 0:
                turns.give_way()
        return bytes(text)

    def check(self, token: int, param: str) -> None:
        """Raises Refused for an id that the model does not have."""
        if not 0 <= token < self.size:
            raise errors.Refused(f"{param}: {token} is no token id of this model (0 to {self.size - 1})", param)

    def tokenize(self, text: str, add_special: bool, parse_special: bool, param: str = "content") -> list[int]:
        return self.tokens_of([Piece(text, not parse_special)], add_special, param)

    def count(self, prompt: Prompt) -> int:
        return len(self.encode(prompt))

    def encode(self, prompt: Prompt, number: int = 0, n_prompts: int = 1) -> Sequence[int]:
        """Returns the token ids of a prompt, checked against the context. May wait while a long text is tokenised.

        `number` of `n_prompts`: which one it is, for the error.
        """
        param = _param_of(prompt, number, n_prompts)
        tokens = self._encode(prompt, param)
        if len(tokens) >= self._info.context:
            raise errors.PromptTooLong(len(tokens), self._info.context, param)
        return tokens

    def encode_answer(self, text: str, param: str) -> Sequence[int]:
        """Returns the token ids of a text that an answer may be. May wait. Raises PromptTooLong."""
        return self._fitting(self.tokenize(text, False, False, param), param)

    def encode_inputs(self, prompts: Sequence[Prompt]) -> list[Sequence[int]]:
        """Returns the token ids of embedding inputs, which may fill the context, for nothing is generated. May wait."""
        params = [_param("input", number, len(prompts)) for number in range(len(prompts))]
        return [
            self._fitting(self._encode(prompt, param), param)
            for prompt, param in Turns().among(zip(prompts, params, strict=True))
        ]

    def encode_pairs(self, query: str, documents: Sequence[str]) -> list[Sequence[int]]:
        """Returns the token ids of the query with each document, joined as the model was trained. May wait."""
        params = [_param("documents", number, len(documents)) for number in range(len(documents))]
        return [
            self._fitting(self._encode_pair(query, document, param), param)
            for document, param in Turns().among(zip(documents, params, strict=True))
        ]

    def _encode_pair(self, query: str, document: str, param: str) -> Sequence[int]:
        info = self._info
        if info.rerank_template:
            return self.tokens_of(self._pair_pieces(query, document), False, param)
        first, second = (self.tokens_of([Piece(text, is_text=True)], False, param) for text in (query, document))
        ends = [info.eos if info.eos >= 0 else info.sep] if info.add_eos else []
        begins, parts = [info.bos] if info.add_bos else [], [info.sep] if info.add_sep else []
        return [*begins, *first, *ends, *parts, *second, *ends]

    def _pair_pieces(self, query: str, document: str) -> list[Piece]:
        """The model's rerank template, filled. In one piece, for words that reach over its borders, unless a text
        holds what would become a control token."""
        texts = {"{query}": query, "{document}": document}
        parts = re.split(r"(\{query\}|\{document\})", self._info.rerank_template)
        if any(marker in text for marker in self._markers for text in texts.values()):
            return [Piece(texts.get(part, part), is_text=part in texts) for part in parts if part]
        return [Piece("".join(texts.get(part, part) for part in parts), is_text=False)]

    def _fitting(self, tokens: Sequence[int], param: str) -> Sequence[int]:
        if len(tokens) > self._info.context:
            raise errors.PromptTooLong(len(tokens), self._info.context, param, has_answer=False)
        return tokens

    def _encode(self, prompt: Prompt, param: str) -> Sequence[int]:
        if isinstance(prompt, Tokens):
            for token in prompt.ids:
                self.check(token, param)
            tokens: Sequence[int] = prompt.ids
        elif isinstance(prompt, MultimodalText):
            raise errors.NotSupported(f"{param}: this model reads text only, no images", param)
        elif isinstance(prompt, Pieces):
            tokens = self._ids_of(prompt, param)
        elif isinstance(prompt, Text):
            tokens = self.tokens_of([Piece(prompt.text, is_text=False)], True, param)
        else:
            pieces = self._pieces(prompt)
            # Templates that write the beginning-of-sequence token themselves must not get a second one.
            begins_itself = bool(self.bos) and bool(pieces) and pieces[0].text.startswith(self.bos)
            tokens = self.tokens_of(pieces, not begins_itself, param)
        if not tokens:
            # Nothing to condition on: begin with the token that begins a sequence.
            if self._info.bos < 0:
                raise errors.Refused(f"{param} is empty, and this model has no beginning-of-sequence token", param)
            tokens = (self._info.bos,)
        return tokens

    def parts(self, prompt: Messages | MultimodalText, number: int = 0, n_prompts: int = 1) -> list[Tokens | Image]:
        """Returns the token ids of the texts of a prompt with images, and the images between them.

        May wait as `encode` does, and raises what that raises for the texts alone.
        """
        param = _param_of(prompt, number, n_prompts)
        runs, begins_itself = self._runs(prompt, param)
        parts: list[Tokens | Image] = []
        for run in runs:
            if isinstance(run, Image):
                parts.append(run)
                continue
            is_first = not parts
            pieces = run or ([Piece("", is_text=False)] if is_first else [])  # a prompt begins so if an image does it
            parts.append(Tokens(tuple(self.tokens_of(pieces, is_first and not begins_itself, param))))
        n_tokens = sum(len(part.ids) for part in parts if isinstance(part, Tokens))
        self.check_room(n_tokens, prompt, number, n_prompts)
        return [part for part in parts if isinstance(part, Image) or part.ids]

    def check_room(self, n_tokens: int, prompt: Prompt, number: int = 0, n_prompts: int = 1) -> None:
        """Raises PromptTooLong for a prompt of so many tokens that the context has no room for an answer."""
        if n_tokens >= self._info.context:
            raise errors.PromptTooLong(n_tokens, self._info.context, _param_of(prompt, number, n_prompts))

    def _runs(self, prompt: Messages | MultimodalText, param: str) -> tuple[list[list[Piece] | Image], bool]:
        """Returns runs of text and the images between them, and whether the text begins a sequence itself."""
        if isinstance(prompt, MultimodalText):
            texts: list[list[Piece] | Image] = [
                part if isinstance(part, Image) else [Piece(part, is_text=False)] for part in prompt.parts
            ]
            return (texts if isinstance(texts[0], list) else [[], *texts]), False
        places = ImagePlaces()
        pieces = self._pieces(places.mark(prompt))
        begins_itself = bool(self.bos) and bool(pieces) and pieces[0].text.startswith(self.bos)
        return places.split(pieces, param), begins_itself

    def _ids_of(self, prompt: Pieces, param: str) -> Sequence[int]:
        """Returns a prompt's ids with ROW_ID for each embedding row. Raises Refused for what the model cannot take."""
        if prompt.n_tokens >= self._info.context:
            raise errors.PromptTooLong(prompt.n_tokens, self._info.context, param)
        ids: list[int] = []
        for piece in prompt.pieces:
            if isinstance(piece, Tokens):
                for token in piece.ids:
                    self.check(token, param)
                ids += piece.ids
            else:
                self._check_width(piece.width, param)
                ids += [ROW_ID] * piece.n
        return ids

    def _check_width(self, width: int, param: str) -> None:
        wanted = self._info.row_width
        if not wanted:
            raise errors.NotSupported(f"{param}: this model takes no embedding rows", param)
        if width != wanted:
            raise errors.Refused(f"{param}: an embedding row of this model has {wanted} numbers, not {width}", param)

    def render(self, prompt: Messages) -> str:
        return "".join(piece.text for piece in self._pieces(prompt))

    def _check_size(self, size: int, param: str) -> None:
        """Raises PromptTooLong for a text of so many bytes that it cannot fit, whatever its tokens."""
        if size > _MAX_BYTES_PER_TOKEN * self._info.context:
            raise errors.PromptTooLong(size // _BYTES_PER_TOKEN, self._info.context, param, is_estimate=True)

    def _pieces(self, prompt: Messages) -> list[Piece]:
        # Before the template, which has limits of its own and other words for them.
        texts = texts_of(prompt)
        self._check_size(sum(map(len, texts)), prompt.param)
        if self._template is None:
            raise errors.NotSupported(self._no_template, prompt.param)
        return self._template.render(prompt, texts)

    def tokens_of(self, pieces: Sequence[Piece], add_special: bool, param: str) -> list[int]:
        """Returns the token ids of pieces. May wait; raises PromptTooLong for what cannot fit whatever its tokens."""
        texts = [piece.text.encode() for piece in pieces]
        size = sum(map(len, texts))
        self._check_size(size, param)
        tokens: list[int] = []
        for number, (text, piece) in enumerate(zip(texts, pieces, strict=True)):
            options = add_special and number == 0, not piece.is_text
            if size <= _SHORT_BYTES:
                tokens += self._native.tokenize(text, *options)
            else:
                tokens += waits.call_in_thread(self._native.tokenize, text, *options)
        return tokens
