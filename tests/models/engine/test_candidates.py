"""Largest logits that a device picks: every answer is bit for bit the one that is drawn from all logits.

The processor is the device here: its graphs pick as those of a GPU would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from corosrv.contracts.jobs import Sampling
from corosrv.models.engine import Engine
from tests.models.engine.test_speculation import CODE, EDIT, JOBS, told
from tests.support.architectures import ARCHITECTURES
from tests.support.engines import job, opened, packaged_model, read_all
from tests.support.gguf import write_lora
from tests.support.vectors import embed

pytestmark = pytest.mark.model

SETTINGS: dict[str, Any] = dict(slots=4, ctx=512, deterministic=True)
VARIANTS = {
    "plain": {},
    "guesses": {"speculation": 16},
    "one slot": {"slots": 1},
}
MORE = {
    "wide": Sampling(temperature=0.9, seed=11, top_k=300),
    "at the edge": Sampling(temperature=1.5, seed=12, top_k=256, top_p=1, min_p=0),
    "nearly all": Sampling(temperature=1.5, seed=13, top_k=255, top_p=1, min_p=0),
    "penalised": Sampling(temperature=0.8, seed=14, presence_penalty=9, frequency_penalty=5, repeat_last_n=-1),
    "rewarded": Sampling(temperature=0.8, seed=15, presence_penalty=-1),
    "banned": Sampling(temperature=0, logit_bias=((" the", float("-inf")), (" of", float("-inf")))),
    "wished": Sampling(temperature=0.7, seed=16, logit_bias=((" zebra", 11.0), (" colour", 6.0))),
    "what was drawn from": Sampling(temperature=0.8, seed=17, n_probs=8, post_sampling_probs=True),
    "best with likelihoods": Sampling(temperature=0, n_probs=2),
    "sigma": Sampling(temperature=0.8, seed=18, top_n_sigma=1.5),
    "typical": Sampling(temperature=0.9, seed=19, typical_p=0.6),
    "adaptive": Sampling(temperature=0.9, seed=20, adaptive_target=0.4),
    "temperature first": Sampling(temperature=0.9, seed=21, samplers=("temperature", "top_k", "top_p")),
    "a grammar far from all": Sampling(temperature=0, grammar="root ::= [一-龥]+ [0-9]"),
    "a grammar of digits": Sampling(temperature=0.8, seed=22, grammar='root ::= [0-9]+ " zebras" .*'),
    "a late grammar": Sampling(temperature=0, grammar='root ::= "return" [ a-z*]+', grammar_triggers=("return",)),
    "no end": Sampling(temperature=0.8, seed=23, ignore_eos=True),
}
ALL: dict[str, dict[str, Any]] = JOBS | {name: {"sampling": sampling} for name, sampling in MORE.items()}


def asked(name: str) -> Any:
    return job(EDIT + CODE[:20], **{"max_tokens": 24, **ALL[name]})


@pytest.fixture(scope="module")
def from_all() -> Iterator[Engine]:
    with opened(model=packaged_model(), candidates="processor", **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def answers(from_all: Engine) -> dict[str, list[Any]]:
    """What is told of each job, drawn from all logits, one after the other."""
    return {name: told(read_all(from_all.submit(asked(name)))) for name in ALL}


@pytest.fixture(scope="module", params=VARIANTS)
def from_picked(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with opened(model=packaged_model(), candidates="device", **SETTINGS | VARIANTS[request.param]) as engine:
        yield engine


def test_the_engine_tells_where_its_candidates_come_from(from_all: Engine, from_picked: Engine) -> None:
    assert (from_all.info.picks, from_picked.info.picks) == (0, 1)
    assert "candidates from the device" not in from_all.info.kernels
    assert "candidates from the device" in from_picked.info.kernels


def test_without_a_gpu_the_processor_gets_all_logits() -> None:
    with opened(model=packaged_model(), slots=1, ctx=64) as engine:
        assert not engine.info.picks


def test_an_answer_is_the_one_that_is_drawn_from_all_logits(from_picked: Engine, answers: dict[str, list[Any]]) -> None:
    alone = {name: told(read_all(from_picked.submit(asked(name)))) for name in ALL}

    assert alone == answers


def test_so_are_answers_of_which_some_need_all_logits_and_others_do_not(
    from_picked: Engine, answers: dict[str, list[Any]]
) -> None:
    readers = {name: from_picked.submit(asked(name)) for name in reversed(ALL)}

    assert {name: told(read_all(reader)) for name, reader in readers.items()} == answers


def test_a_scored_prompt_and_vectors_are_the_same(from_all: Engine, from_picked: Engine) -> None:
    scored = job(EDIT, sampling=Sampling(temperature=0.5, seed=1, n_probs=2), scores_prompt=True)
    texts = ("The sea is blue.", EDIT)

    results = []
    for engine in (from_all, from_picked):
        chunks = read_all(engine.submit(scored))
        vectors = embed(engine, *texts)
        results.append((told(chunks), [info for chunk in chunks for info in chunk.prompt_info], vectors))

    assert results[1] == results[0]
    assert results[0][1]


@pytest.mark.parametrize("architecture", ["mamba", "lfm2", "mixture", "gemma2"])
def test_answers_of_other_architectures_are_the_same(tmp_path: Any, architecture: str) -> None:
    model = str(ARCHITECTURES[architecture](tmp_path / "model.gguf"))
    sampling = Sampling(temperature=1.5, seed=3, top_k=40, n_probs=2, post_sampling_probs=True)

    results = []
    for candidates in ("processor", "device"):
        with opened(model=model, candidates=candidates, slots=3, ctx=128) as engine:
            assert engine.info.picks == (candidates == "device")
            results.append([told(read_all(engine.submit(job(text, sampling=sampling)))) for text in ("a", "bc", "def")])

    assert results[0] == results[1]


def test_answers_of_slots_that_share_their_cells_are_the_same() -> None:
    results = []
    for candidates in ("processor", "device"):
        settings = dict(slots=3, ctx=256, kv_unified=True, candidates=candidates)
        with opened(model=packaged_model(), **settings) as engine:
            results.append([told(read_all(engine.submit(asked(name)))) for name in ("drawn", "logprobs", "three")])

    assert results[0] == results[1]


def test_answers_with_adapters_are_the_same(tmp_path: Any) -> None:
    weights = {"blk.0.attn_output.weight": (576, 576), "blk.3.ffn_up.weight": (576, 1536)}
    adapter = write_lora(tmp_path / "adapter.gguf", weights, 1)
    jobs = [job(EDIT, max_tokens=12, sampling=JOBS["drawn"]["sampling"], lora=((0, scale),)) for scale in (0, 1, 0.5)]

    results = []
    for candidates in ("processor", "device"):
        with opened(model=packaged_model(), candidates=candidates, lora=f"{adapter}:0", **SETTINGS) as engine:
            results.append([told(read_all(engine.submit(asked))) for asked in jobs])

    assert results[0] == results[1]
    assert results[0][0] != results[0][1]
