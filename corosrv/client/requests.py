"""Makes the requests of a rollout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import Misuse

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One request for answers to a prompt; a group has one, or as many as answers where it is split."""

    group: str  # what the server calls it
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class RequestMaker:
    """Makes the requests of one rollout. `members`: of each body; `name`: of the rollout, unique."""

    name: str
    n: int
    path: str
    members: Mapping[str, Any]
    is_split: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise Misuse(f"n must be at least 1, not {self.n}")
        if self.path not in (CHAT, TEXT):
            raise Misuse(f"path must be {CHAT} or {TEXT}, not {self.path!r}")
        for name in ("n", "stream", "best_of"):
            if name in self.members:
                raise Misuse(f"{name} cannot be set for the requests of a rollout")

    def requests(self, index: int, prompt: Any) -> list[GroupRequest]:
        """Makes the requests for one prompt: a text, a conversation, token ids, or a mapping of members of the body.

        Raises TypeError and ValueError for what is no JSON.
        """
        members = {**self.members, **self._prompt(prompt)}
        if not self.is_split or self.n == 1:
            return [self._request(str(index), {**members, "n": self.n})]
        # As a server would seed the answers of one request.
        seed = members.get("seed")
        seeds = [{} if seed is None else {"seed": seed + number} for number in range(self.n)]
        return [self._request(f"{index}.{number}", {**members, **seeds[number]}) for number in range(self.n)]

    def _request(self, suffix: str, members: dict[str, Any]) -> GroupRequest:
        group = f"{self.name}-{suffix}"
        headers = {"Content-Type": "application/json", "X-Group-Id": group, "Idempotency-Key": group}
        return GroupRequest(group, self.path, headers, json.dumps(members).encode())

    def _prompt(self, prompt: Any) -> Mapping[str, Any]:
        if isinstance(prompt, Mapping):
            return prompt
        if self.path == TEXT:
            return {"prompt": prompt}
        return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt}
