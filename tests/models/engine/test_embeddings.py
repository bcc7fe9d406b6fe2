"""Embeddings: the vectors of texts, beside generation, from decoders and encoders."""

import itertools
import math

import gevent
import pytest

from corosrv.base import errors
from corosrv.contracts.jobs import EmbedJob, Finish, Job, RerankJob, Text, Tokens
from tests.support.engines import TIMEOUT, answer, is_idle, job, opened, packaged_model, read_all
from tests.support.gguf import WORDS, write_bert
from tests.support.vectors import cosine, embed, vector
from tests.support.waiting import wait_until

# Of very different lengths: a vector that depended on its neighbours would show it here.
INPUTS = ("the cat", "a dog ran on the road " * 12, "why", "the red boat on the big river " * 30)


@pytest.fixture(scope="module")
def smollm():
    with opened(model=packaged_model(), slots=4, ctx=512) as engine:
        yield engine


@pytest.fixture(scope="module", params=[None, 1, 2, 3], ids=["unsaid", "mean", "cls", "last"])
def encoder(request, tmp_path_factory):
    """A tiny BERT of 512 tokens of context, which pools in the way its file says."""
    path = write_bert(tmp_path_factory.mktemp("models") / "bert.gguf", request.param)
    with opened(model=str(path)) as engine:
        yield engine


@pytest.mark.model
def test_a_decoders_vector_does_not_depend_on_its_neighbours(smollm):
    together = embed(smollm, *INPUTS)

    for text, found in zip(INPUTS, together, strict=True):
        (alone,) = embed(smollm, text)
        assert len(found) == 576
        assert math.hypot(*found) == pytest.approx(1)
        assert cosine(alone, found) > 0.999
    assert all(cosine(a, b) < 0.99 for a, b in itertools.combinations(together, 2))


@pytest.mark.model
def test_the_mean_is_that_of_all_tokens_vectors(smollm):
    text = INPUTS[1]

    (alls,) = embed(smollm, text, pooling=False)
    (pooled,) = embed(smollm, text, normalize=-1)

    n_tokens = len(alls) // 576
    assert n_tokens == smollm.vocabulary(None).count(Text(text))
    means = [sum(alls[i::576]) / n_tokens for i in range(576)]
    assert pooled == pytest.approx(means, rel=0.01, abs=0.01)


@pytest.mark.model
def test_vectors_and_texts_of_one_time_are_those_of_each_alone(smollm):
    story = job("Once upon a time", max_tokens=8)  # few: without COROSRV_DETERMINISTIC texts part some day
    text_alone, (vector_alone,) = answer(smollm, story), embed(smollm, INPUTS[3])

    telling = [gevent.spawn(answer, smollm, story) for _ in range(2)]
    embedding = [gevent.spawn(embed, smollm, *INPUTS) for _ in range(3)]
    gevent.joinall(telling + embedding, timeout=TIMEOUT, raise_error=True)

    assert [told.value for told in telling] == [text_alone] * 2
    assert all(cosine(found.value[3], vector_alone) > 0.999 for found in embedding)


@pytest.mark.model
def test_an_input_may_be_as_long_as_the_context_and_no_longer(smollm):
    context = smollm.info.context
    fitting, longer = Tokens((5,) * context), Tokens((5,) * (context + 1))

    (chunk,) = read_all(smollm.submit(EmbedJob((fitting,))))
    with pytest.raises(errors.PromptTooLong, match=f"too large: it has {context + 1} tokens") as refused:
        smollm.submit(EmbedJob((fitting, longer)))

    assert chunk.prompt_tokens == context
    assert refused.value.param == "input[1]"
    assert "answer" not in str(refused.value)


@pytest.mark.model
def test_embeddings_count_as_prompt_tokens(smollm):
    wait_until(lambda: is_idle(smollm))
    before = smollm.stats()

    with smollm.submit(EmbedJob((Text(INPUTS[1]),))) as reader:
        chunks = reader.take(TIMEOUT)

    count = smollm.vocabulary(None).count(Text(INPUTS[1]))
    assert (chunks[0].prompt_tokens, chunks[0].n_tokens, chunks[0].text) == (count, 0, "")
    assert chunks[0].prompt_ms > 0
    wait_until(lambda: smollm.stats().prompt_tokens == before.prompt_tokens + count)
    assert smollm.stats().generated_tokens == before.generated_tokens


@pytest.mark.model
def test_leaving_an_embedding_frees_its_slot(smollm):
    with smollm.submit(EmbedJob((Tokens((5,) * 500),) * 40)):
        pass

    wait_until(lambda: smollm.stats().running == smollm.stats().waiting == 0)


@pytest.mark.parametrize(("normalize", "size"), [(2, lambda v: math.hypot(*v)), (1, lambda v: sum(map(abs, v)))])
def test_a_vector_is_normalised_as_asked(encoder, normalize, size):
    (found,) = embed(encoder, "the cat", normalize=normalize)

    assert size(found) == pytest.approx(1)


def test_a_vectors_largest_number_can_be_that_of_16_bits(encoder):
    (found,) = embed(encoder, "the cat", normalize=0)

    assert max(map(abs, found)) == pytest.approx(32760)


def test_an_encoders_vector_does_not_depend_on_its_neighbours(encoder):
    together = embed(encoder, *INPUTS)

    for text, found in zip(INPUTS, together, strict=True):
        (alone,) = embed(encoder, text)
        assert len(found) == 32
        assert cosine(alone, found) > 0.99999


def test_an_encoders_tokens_see_those_behind_them(encoder):
    (first,), (second,) = (embed(encoder, f"the cat {word}", pooling=False) for word in ("ran", "sat"))

    assert len(first) == len(second) == 32 * 5  # with the marks at both ends
    assert first[:32] != pytest.approx(second[:32], abs=1e-3)


def test_an_encoder_fills_its_context(encoder):
    words = " ".join(itertools.islice(itertools.cycle(WORDS), 510))

    chunks = read_all(encoder.submit(EmbedJob((Text(words), Text(words)))))

    assert [(chunk.prompt_tokens, chunk.finish) for chunk in chunks] == [(512, Finish.STOP)] * 2
    assert cosine(vector(chunks[0]), vector(chunks[1])) > 0.99999


def test_the_setting_outweighs_the_files_pooling(tmp_path):
    path = write_bert(tmp_path / "bert.gguf", pooling=1)

    with opened(model=str(path), pooling="cls") as engine:
        (pooled,) = embed(engine, "the cat", normalize=-1)
        (alls,) = embed(engine, "the cat", pooling=False)

    assert pooled == pytest.approx(alls[:32], abs=1e-5)


def test_without_pooling_there_is_a_vector_for_each_token_only(tmp_path):
    path = write_bert(tmp_path / "bert.gguf")

    with opened(model=str(path), pooling="none") as engine:
        (alls,) = embed(engine, "the cat", pooling=False)
        with pytest.raises(errors.NotSupported, match="COROSRV_POOLING=none"):
            engine.submit(EmbedJob((Text("the cat"),)))

    assert len(alls) == 32 * 4


def test_an_encoder_offers_embeddings_alone_and_says_so(encoder):
    (card,) = encoder.models()

    assert card.capabilities == {"embeddings"}
    for wrong in (Job((Text("the cat"),)), RerankJob("why", ("the cat",))):
        with pytest.raises(errors.NotSupported):
            encoder.submit(wrong)


@pytest.mark.model
def test_a_decoder_says_what_it_offers(smollm):
    (card,) = smollm.models()

    assert card.capabilities == {"completion", "chat", "tools", "embeddings"}
    with pytest.raises(errors.NotSupported, match="classification head"):
        smollm.submit(RerankJob("why", ("the cat",)))


def test_a_made_up_model_has_no_vectors():
    with opened() as engine, pytest.raises(errors.NotSupported, match="no vectors"):
        engine.submit(EmbedJob((Text("the cat"),)))
