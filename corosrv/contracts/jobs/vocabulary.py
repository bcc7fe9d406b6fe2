"""The protocol by which adapters turn texts into a model's tokens and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from corosrv.contracts.jobs.job import Messages, Prompt
from corosrv.contracts.jobs.model import InfillTokens


class Vocabulary(Protocol):
    """Texts, tokens and templates of one model. Long texts wait while they are read."""

    size: int
    bos: str  # the token that begins a text, spelled out; "" where the model has none
    eos: str
    end_tokens: tuple[int, ...]  # those that end an answer
    chat_template: str  # "" where there is none
    infill: InfillTokens | None

    @property
    def template_abilities(self) -> frozenset[str]:
        """Abilities of the chat template itself: system, tools, calls, results, reasoning."""

    def tokenize(self, text: str, add_special: bool, parse_special: bool, param: str = "content") -> list[int]:
        """Raises PromptTooLong, which names `param`, for a text that no context could hold."""

    def piece(self, token: int) -> bytes:
        """Returns what a token prints, control tokens spelled out. Raises Refused for an unknown id."""

    def spell(self, tokens: Iterable[int]) -> bytes:
        """Returns what tokens print in a row. Raises as `piece` does; gives way to others where they are many."""

    def render(self, prompt: Messages) -> str:
        """Renders a conversation by the model's chat template."""

    def count(self, prompt: Prompt) -> int:
        """Tokens of a prompt, as `usage.prompt_tokens` would have them. Raises Refused as `submit` does."""

    def encode(self, prompt: Prompt, number: int = 0, n_prompts: int = 1) -> Sequence[int]:
        """Returns the tokens that a job of this prompt begins with. Raises Refused as `submit` does.

        `number` of `n_prompts`: which one it is, for the error.
        """
