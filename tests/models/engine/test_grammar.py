"""Grammars in the engine: what is generated belongs to them, whatever they are, and nothing else is disturbed."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corosrv.base.errors import InvalidGrammar, InvalidSchema
from corosrv.contracts.jobs import Finish, Job, Sampling
from corosrv.models.engine import Engine
from tests.support.engines import GREEDY, answer, job, opened, packaged_model, read_all, text_of
from tests.support.grammars import JSON_OBJECT

HOT = Sampling(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0)


def asked(text: str, grammar: str, sampling: Sampling = GREEDY, max_tokens: int = 32, **chosen: object) -> Job:
    return job(text, sampling=replace(sampling, grammar=grammar), max_tokens=max_tokens, **chosen)


# Any model: the synthetic one says words of its own unless it is told otherwise.


def test_a_grammar_decides_what_is_said_and_its_end_is_a_stop(engine: Engine) -> None:
    chunks = read_all(engine.submit(asked("x", 'root ::= "caf\u00e9" [0-9]{2} "!"')))

    assert re.fullmatch("caf\u00e9[0-9]{2}!", text_of(chunks))
    assert chunks[-1].finish is Finish.STOP


def test_no_grammar_is_any_text(engine: Engine) -> None:
    assert answer(engine, asked("x", "")) == answer(engine, job("x", max_tokens=32))


def test_a_grammar_is_cut_by_max_tokens_and_by_stop_strings(engine: Engine) -> None:
    cut = read_all(engine.submit(asked("x", 'root ::= "abcdef"', max_tokens=3)))
    stopped = read_all(engine.submit(asked("x", 'root ::= "abcdef"', stop=("de",))))

    assert (text_of(cut), cut[-1].finish) == ("abc", Finish.LENGTH)
    assert (text_of(stopped), stopped[-1].finish) == ("abc", Finish.STOP)


def test_answers_to_one_prompt_follow_the_grammar_each_by_itself(engine: Engine) -> None:
    chunks = read_all(engine.submit(asked("x", "root ::= [a-z]{4} [0-9]{4}", replace(HOT, seed=1), n=6)))

    texts = [text_of(chunks, index) for index in range(6)]
    assert all(re.fullmatch("[a-z]{4}[0-9]{4}", text) for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a', "line 1, column 10: this '\"' is never closed"),
        ('item ::= "a"', "there is no rule 'root'"),
        ('root ::= "a"\nitem ::= thing', "line 2, column 10: the rule 'thing' is not defined"),
        ('root ::= "a\x00"', "line 1, column 12: a NUL byte"),
        ('root ::= "a"{3,1}', "the repetition's most is below its least"),
        ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "nested deeper than 128"),
        ('root ::= ((("a"{2000}){2000}){2000}){2000}', "more than 65536 elements"),
        ('root ::= "' + "a" * 70_000 + '"', "at most 65536 are taken"),
        ('root ::= root "a" | "a"', "left recursion"),
    ],
)  # fmt: skip
def test_a_grammar_that_cannot_be_used_is_refused_with_its_place(engine: Engine, grammar: str, words: str) -> None:
    with pytest.raises(InvalidGrammar) as refused:
        engine.submit(asked("x", grammar))

    assert words in str(refused.value)
    assert (refused.value.param, refused.value.code) == ("grammar", "invalid_grammar")


def test_a_grammar_made_from_a_schema_is_refused_under_the_name_of_the_schema(engine: Engine) -> None:
    deep = replace(GREEDY, grammar_param="response_format.json_schema.schema")

    with pytest.raises(InvalidSchema) as refused:
        engine.submit(asked("x", "root ::= " + "(" * 200 + '"a"' + ")" * 200, deep))

    assert refused.value.param == "response_format.json_schema.schema"
    assert "grammar" not in str(refused.value)


def test_the_card_has_the_limits_that_the_operator_set() -> None:
    with opened(grammar_bytes=1000, grammar_rules=50, grammar_repetitions=30) as engine:
        card = engine.card(None)

    assert (card.grammar_bytes, card.grammar_rules, card.grammar_repetitions) == (1000, 50, 30)


def test_a_grammar_that_nothing_can_follow_ends_its_own_job_only(engine: Engine) -> None:
    # Banned by the bias, asked for by the grammar.
    dead = asked("x", 'root ::= "ab"', replace(GREEDY, logit_bias=((ord("b"), -float("inf")),)))
    other = engine.submit(asked("x", "root ::= [a-z]{20}"))

    failed = read_all(engine.submit(dead))

    assert failed[-1].finish is Finish.ERROR
    assert failed[-1].text.startswith("grammar_dead_end")
    assert re.fullmatch("[a-z]{20}", text_of(read_all(other)))


PIECES = (
    *('"a"', '"the "', '""', "[a-z]", "[^ ]", ".", "x", "y", "root", "(", ")", "|", "*", "+", "?", "{2}", "{0,3}"),
    *("{2000}", " ", "\n", "x ::= ", "y ::= ", '"', "[", "]", "\\", "#", "<", "\u00e9", "\x00"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
GRAMMARS = TEXTS | TEXTS.map(lambda text: "root ::= " + text) | st.builds(
    'root ::= {}\nx ::= "a" ({}) | ""\ny ::= x? {} "b"'.format, TEXTS, TEXTS, TEXTS
)  # fmt: skip


@pytest.fixture(scope="module")
def kept() -> object:
    """An engine for many examples."""
    with opened() as engine:
        yield engine


@settings(max_examples=400, deadline=None)
@given(grammar=GRAMMARS)
def test_any_text_as_a_grammar_is_refused_or_followed_and_the_engine_lives(kept: Engine, grammar: str) -> None:
    try:
        chunks = read_all(kept.submit(asked("x", grammar, replace(HOT, seed=1), max_tokens=12)))
    except InvalidGrammar as refused:
        outcome = str(refused)
    else:
        outcome = chunks[-1].finish if chunks[-1].finish is not Finish.ERROR else chunks[-1].text

    assert outcome in (Finish.STOP, Finish.LENGTH) or outcome.startswith(("grammar: line ", "grammar_"))
    assert answer(kept, job("x")) != ""


# The real model: thousands of tokens that begin alike, and some that end inside a character.


@pytest.mark.model
@pytest.mark.parametrize("sampling", [GREEDY, replace(HOT, seed=5), Sampling(seed=6)], ids=["greedy", "hot", "default"])
@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ("root ::= [0-9]{1,8}", r"[0-9]{1,8}"),
        ('root ::= "yes" | "no"', r"yes|no"),
        ('root ::= ("\\u00e9" | [\\u4e00-\\u9fff]){3} "." ', r"[\u00e9\u4e00-\u9fff]{3}\."),
        ('root ::= word (" " word){3} "."\nword ::= [A-Z] [a-z]{1,9}', r"[A-Z][a-z]{1,9}( [A-Z][a-z]{1,9}){3}\."),
    ],
)
def test_what_the_model_says_belongs_to_the_grammar(
    smollm2: Engine, grammar: str, expected: str, sampling: Sampling
) -> None:
    chunks = read_all(smollm2.submit(asked("Is the sea blue? Answer:", grammar, sampling, max_tokens=64)))

    assert re.fullmatch(expected, text_of(chunks))
    assert chunks[-1].finish is Finish.STOP


@pytest.mark.model
def test_json_is_json_however_hot_it_is_drawn(smollm2: Engine) -> None:
    chunks = read_all(
        smollm2.submit(asked("A person as JSON:", JSON_OBJECT, replace(HOT, top_k=100, seed=3), 150, n=8))
    )
    finishes = {chunk.index: chunk.finish for chunk in chunks if chunk.finish}

    for index in range(8):
        text = text_of(chunks, index)
        assert text.startswith("{")
        if finishes[index] is Finish.STOP:
            assert isinstance(json.loads(text), dict)
    assert Finish.STOP in finishes.values()
    assert set(finishes.values()) <= {Finish.STOP, Finish.LENGTH}


@pytest.mark.model
def test_sixteen_grammars_at_once_give_what_each_gives_alone(smollm2: Engine) -> None:
    grammars = [f'root ::= "{letter}" [a-z]{{3,12}} "{letter.upper()}"' for letter in "abcdefghijklmnop"]
    jobs = [asked("Words:", grammar, replace(GREEDY if i % 2 else HOT, seed=i)) for i, grammar in enumerate(grammars)]

    alone = [answer(smollm2, one) for one in jobs]
    readers = [smollm2.submit(one) for one in jobs]
    together = [text_of(read_all(reader)) for reader in readers]

    for letter, text in zip("abcdefghijklmnop", together, strict=True):
        assert re.fullmatch(f"{letter}[a-z]{{3,12}}({letter.upper()})?", text)
    assert together == alone


@pytest.mark.model
def test_the_same_seed_gives_the_same_text_and_another_seed_another(smollm2: Engine) -> None:
    def said(seed: int) -> str:
        return answer(smollm2, asked("Once upon a time", "root ::= [a-z ]{40}", replace(HOT, seed=seed), 48))

    assert said(1) == said(1)
    assert said(1) != said(2)


@pytest.mark.model
def test_ambiguity_without_end_neither_hangs_nor_slows_the_neighbours() -> None:
    # 17 s for the fourth token, and no end for the first, in an engine that keeps a stack for each way to read it.
    hostile = ('root ::= r\nr ::= [^q] r "x" | [^r] r "y" | [^s]', "root ::= " + "[a-z]? " * 2000)
    with opened(model=packaged_model(), slots=4, ctx=256, threads=1) as engine:
        readers = [engine.submit(asked("Once upon a time", grammar, HOT, 64)) for grammar in hostile]
        beside = answer(engine, job("The sea is", max_tokens=16))
        finishes = [read_all(reader)[-1] for reader in readers]

        assert beside == answer(engine, job("The sea is", max_tokens=16))
        for last in finishes:
            assert last.finish in (Finish.STOP, Finish.LENGTH) or last.text.startswith("grammar_too_slow")
