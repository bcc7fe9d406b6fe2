"""A model's vocabulary without its weights: what an engine with the same model says of tokens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from corosrv.base import errors, waits
from corosrv.contracts.jobs import Text
from corosrv.models.engine.binding import NativeEngine, NativeVocabulary, Options, Synthetic
from corosrv.models.engine.vocabulary import EngineVocabulary
from tests.support.engines import TIMEOUT, packaged_model

OPTIONS = Options(
    model="",
    synthetic=Synthetic(),
    context=256,
    slots=1,
    queue=1,
    tasks_of_owner=0,
    threads=1,
    step_ms=60,
    reader_bytes=65_536,
)
MOST_MIB = 32  # with the packaged model; an engine has some 200
TEXTS = ("", "Hello", "Once upon\n a time,  é\U0001f30a <|im_start|>", "<|im_end|>", "\0")


def of_file(path: str) -> Options:
    return msgspec.structs.replace(OPTIONS, model=path, synthetic=None)


def opened(options: Options) -> Iterator[tuple[NativeEngine, NativeVocabulary]]:
    """An engine and a vocabulary of the same model."""
    engine, vocabulary = NativeEngine(options), NativeVocabulary(options)
    waits.wait_readable(engine.fd, TIMEOUT)
    yield engine, vocabulary
    vocabulary.close()
    engine.close()


def check_same(engine: NativeEngine, vocabulary: NativeVocabulary) -> None:
    info = engine.info()
    assert vocabulary.control_tokens() == engine.control_tokens() != []
    assert vocabulary.end_tokens() == engine.end_tokens() != []
    for special in (False, True):
        texts = [[one.token_text(token, special) for token in range(info.n_vocab)] for one in (engine, vocabulary)]
        assert texts[0] == texts[1]
    for text in TEXTS:
        for add_special, parse_special in ((True, True), (False, False)):
            ids = [one.tokenize(text.encode(), add_special, parse_special) for one in (engine, vocabulary)]
            assert ids[0] == ids[1]


def test_the_synthetic_tokens_are_those_of_its_engine():
    for engine, vocabulary in opened(OPTIONS):
        check_same(engine, vocabulary)


@pytest.mark.model
def test_the_tokens_are_those_of_an_engine_with_the_same_model():
    for engine, vocabulary in opened(of_file(packaged_model())):
        check_same(engine, vocabulary)
        marker = next(token for token in engine.control_tokens() if token not in engine.end_tokens())
        vocabulary.show_tokens([marker])

        assert vocabulary.token_text(marker) == engine.token_text(marker, special=True)
        assert engine.token_text(marker) == b""


@pytest.mark.model
def test_prompts_are_read_by_a_vocabulary_as_by_an_engine():
    for engine, vocabulary in opened(of_file(packaged_model())):
        readers = [EngineVocabulary(one, engine.info(), has_safe_template=True) for one in (engine, vocabulary)]

        assert readers[0].encode(Text("Hello <|im_end|>")) == readers[1].encode(Text("Hello <|im_end|>"))
        assert readers[0].template_abilities == readers[1].template_abilities != frozenset()


@pytest.mark.model
def test_a_vocabulary_takes_little_memory():
    program = (
        "import sys\n"
        "from corosrv.models.engine.binding import NativeVocabulary\n"
        "from tests.models.engine.test_native_vocabulary import OPTIONS, of_file, resident\n"
        "kept = NativeVocabulary(OPTIONS)\n"
        "before = resident()\n"
        "vocabulary = NativeVocabulary(of_file(sys.argv[1]))\n"
        "print(resident() - before)\n"
    )
    printed = subprocess.check_output([sys.executable, "-c", program, packaged_model()], text=True, timeout=TIMEOUT)

    assert 1 < int(printed) / 2**20 < MOST_MIB


def resident() -> int:
    """The bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    for path, words in (("/no/such.gguf", "such.gguf"), (__file__, "not a GGUF"), (str(broken), "broken.gguf")):
        with pytest.raises(errors.Refused, match=words):
            NativeVocabulary(of_file(path))


@pytest.mark.parametrize("token", [-1, 273, 2**31 - 1])
def test_an_unknown_token_has_no_text_and_cannot_be_shown(token):
    vocabulary = NativeVocabulary(OPTIONS)

    with pytest.raises(errors.Refused):
        vocabulary.token_text(token)
    with pytest.raises(errors.Refused, match="none of the model's"):
        vocabulary.show_tokens([token])


def test_a_closed_vocabulary_says_so():
    vocabulary = NativeVocabulary(OPTIONS)
    vocabulary.close()
    vocabulary.close()

    for call in (vocabulary.end_tokens, lambda: vocabulary.tokenize(b"x", False, False)):
        with pytest.raises(errors.UsedAfterClose):
            call()


def test_an_engine_that_loads_has_no_tokens_yet_and_a_closed_one_none_any_more(tmp_path):
    engine = NativeEngine(of_file(str(tmp_path / "none.gguf")))
    waits.wait_readable(engine.fd, TIMEOUT)
    with pytest.raises(errors.Starting):
        engine.end_tokens()
    engine.close()
    with pytest.raises(errors.UsedAfterClose):
        engine.end_tokens()


def test_a_vocabulary_serves_the_process_that_opened_it():
    vocabulary = NativeVocabulary(OPTIONS)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            vocabulary.tokenize(b"x", False, False)
        except errors.UsedAfterFork:
            vocabulary.close()
            code = 0
        finally:
            os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert vocabulary.tokenize(b"x", False, False) == [ord("x")]
