"""Makes prompts of plain words, each a token or little more to any tokenizer, never the same twice.

A prompt depends on the seed, the round and the request's number: two servers get the same prompts, and a server that
caches prompts never gets one again.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from corosrv.client.bench.load.plan import BenchPlan, Mix

SHORT_WORDS = 24
LONG_WORDS = 1400  # about 1,500 tokens
SYSTEM_WORDS = 370  # about 400 tokens

WORDS = """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city community name president team minute idea body information
    back parent face level office door health person art war history party result change morning reason research girl
    guy moment air teacher force education foot boy age policy music market sense nation plan college interest death
    experience effect use class control field development role effort rate heart drug show leader light voice wife
    police mind price report decision son view relationship town road arm difference value building action season
    society tax director position player record paper space ground form event official matter center couple site
""".split()  # noqa: SIM905  # a list of words reads as words


def system_prompt(plan: BenchPlan, number: int) -> str:
    """Makes the beginning that all requests of a round share; each round has a new one, which has to be computed."""
    chance = random.Random(f"{plan.seed}/{number}/system")
    return "You answer in the words of this list. " + _words(chance, SYSTEM_WORDS)


def user_prompt(plan: BenchPlan, number: int, index: int, is_long: bool) -> str:
    """Makes the prompt of request `index` in round `number`."""
    chance = random.Random(f"{plan.seed}/{number}/{index}/{'long' if is_long else 'short'}")
    if is_long:
        return f"{_words(chance, LONG_WORDS)}. Tell a story with these words."
    return f"{_words(chance, SHORT_WORDS)}. Tell a long story with these words."


def body(plan: BenchPlan, model: str, number: int, index: int, is_arriving: bool = False) -> bytes:
    """Makes the JSON of a request. `is_arriving`: a long prompt among running streams."""
    user = user_prompt(plan, number, index, is_long=is_arriving or plan.mix is Mix.LONG)
    system = system_prompt(plan, number) if plan.mix is Mix.SHARED else ""
    fields: dict[str, Any] = {
        "model": model,
        **(_chat(system, user) if plan.is_chat else {"prompt": f"{system}\n\n{user}" if system else user}),
        "max_tokens": plan.tokens,
        "temperature": plan.temperature,
        "seed": (plan.seed * 1_000_003 + number * 100_003 + index) % 2**31,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if plan.is_forced else {}),
        **plan.extra,
    }
    return msgspec.json.encode(fields)


def _chat(system: str, user: str) -> dict[str, Any]:
    turns = [{"role": "system", "content": system}] if system else []
    return {"messages": [*turns, {"role": "user", "content": user}]}


def _words(chance: random.Random, n: int) -> str:
    return " ".join(chance.choices(WORDS, k=n))
