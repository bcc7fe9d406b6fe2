"""Reranking: scores of documents for a query, from a model with a classification head."""

import struct

import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import EmbedJob, Finish, RerankJob, Terms, Text
from corosrv.dialects.generation.call import prompt_tokens_of
from corosrv.models.engine import Engine
from tests.support.engines import opened, read_all
from tests.support.gguf import write_bert

QUERY = "why the cat sat"
DOCUMENTS = ("the dog ran on the road", "a cat sat on the mat", "the river", "boat " * 50)
# What llama-server of the same libllama answers for this file: tests.support.gguf draws its weights from a seed.
SCORES = (0.866792, 0.942112, 0.836168, 0.818800)
RANK = 4  # libllama's number


@pytest.fixture(scope="module")
def ranker(tmp_path_factory):
    path = write_bert(tmp_path_factory.mktemp("models") / "rank.gguf", RANK, has_head=True)
    with opened(model=str(path)) as engine:
        yield engine


def scores(engine: Engine, query: str, *documents: str) -> list[float]:
    chunks = sorted(read_all(engine.submit(RerankJob(query, documents))), key=lambda chunk: chunk.index)
    assert all(chunk.finish is Finish.STOP and len(chunk.vector) == 4 for chunk in chunks)
    return [struct.unpack("<f", chunk.vector)[0] for chunk in chunks]


def test_documents_get_the_scores_that_llama_server_gives_them(ranker):
    assert scores(ranker, QUERY, *DOCUMENTS) == pytest.approx(SCORES, abs=1e-3)  # processors round differently


def test_a_score_does_not_depend_on_the_other_documents(ranker):
    alone = [scores(ranker, QUERY, document)[0] for document in DOCUMENTS]

    assert alone == pytest.approx(SCORES, abs=1e-3)  # processors round differently


def test_a_pair_begins_and_ends_as_the_model_wants_it(ranker):
    chunks = read_all(ranker.submit(RerankJob("the cat", ("a dog", "mat"))))

    assert prompt_tokens_of(chunks) == [6, 5]  # [CLS] the cat [SEP] a dog


def test_a_document_that_does_not_fit_is_refused_by_its_number(ranker):
    with pytest.raises(errors.PromptTooLong) as refused:
        ranker.submit(RerankJob(QUERY, ("the cat", "boat " * 600)))

    assert refused.value.param == "documents[1]"


def test_a_callers_share_of_the_queue_holds_for_scores_and_vectors(tmp_path):
    few, many = ("the cat",) * 2, ("the cat",) * 3
    ranker, embedder = tmp_path / "rank.gguf", tmp_path / "embed.gguf"
    write_bert(ranker, RANK, has_head=True)
    write_bert(embedder, pooling=1)

    with opened(model=str(ranker), queue_per_key=2) as engine:
        assert len(read_all(engine.submit(RerankJob(QUERY, few, terms=Terms(caller="greedy"))))) == 2
        with pytest.raises(errors.QueueFull, match="of this API key"):
            engine.submit(RerankJob(QUERY, many, terms=Terms(caller="greedy")))
    with opened(model=str(embedder), queue_per_key=2) as engine:
        assert len(read_all(engine.submit(EmbedJob(tuple(map(Text, few)), terms=Terms(caller="greedy"))))) == 2
        with pytest.raises(errors.QueueFull, match="of this API key"):
            engine.submit(EmbedJob(tuple(map(Text, many)), terms=Terms(caller="greedy")))


def test_a_ranker_offers_scores_alone(ranker):
    (card,) = ranker.models()

    assert card.capabilities == {"rerank"}
    with pytest.raises(errors.NotSupported, match="makes no vectors"):
        ranker.submit(EmbedJob((Text("the cat"),)))


def test_a_file_without_a_head_is_refused_where_scores_are_wanted(tmp_path):
    path = write_bert(tmp_path / "bert.gguf", pooling=1)

    with (
        pytest.raises(errors.ModelFailed, match=r"no classification head.*COROSRV_POOLING"),
        opened(model=str(path), pooling="rank"),
    ):
        pass


@pytest.mark.parametrize("has_marker", [False, True])
def test_a_models_own_template_joins_the_pair(tmp_path, has_marker):
    """A control marker in a text stays text, and then takes more tokens than its one."""
    template = "[CLS]{query} why {document}[SEP]"
    path = write_bert(tmp_path / "rank.gguf", RANK, has_head=True, rerank_template=template)
    document = "[SEP]" if has_marker else "cat {query}"

    with opened(model=str(path)) as engine:
        chunks = read_all(engine.submit(RerankJob("the dog", (document,))))

    # The braces of a document are no place for the query: {, query and } are three unknown words.
    assert prompt_tokens_of(chunks) == [8 if has_marker else 9]
