"""Clients that each ask a server for one completion, all at once."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.load.process import Server


@dataclass(frozen=True, slots=True)
class Answer:
    """What one client got, and when."""

    prompt_tokens: int
    n_tokens: int
    seconds: float


def complete_all(server: Server, prompts: Sequence[str | Sequence[int]], n_tokens: int, timeout: float) -> list[Answer]:
    """Has a client for each prompt, a text or tokens, ask at the same time. Raises where one gets no answer."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: complete(server, prompt, n_tokens, timeout), prompts))


def complete(server: Server, prompt: str | Sequence[int], n_tokens: int, timeout: float) -> Answer:
    """Asks for so many tokens, and waits for them."""
    body = {"prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=timeout) as response:
        usage = json.load(response)["usage"]
    return Answer(usage["prompt_tokens"], usage["completion_tokens"], time.monotonic() - began)
