"""Images through real servers of models that read their rows in a way of their own."""

import pytest

from tests.serve.image_server import CONTEXT, N_EMBD, completion, png
from tests.serve.server import servers
from tests.support import gguf, projector


@pytest.mark.parametrize(
    ("write_model", "write_projector", "n_rows"),
    [(gguf.write_qwen2vl, projector.write_qwen2vl, 12), (gguf.write_llama, projector.write_gemma3, 4)],
    ids=["M-RoPE", "non-causal"],
)
def test_an_image_is_answered_and_shared_when_it_comes_again(tmp_path, cache, write_model, write_projector, n_rows):
    model, mmproj = write_model(tmp_path / "m.gguf", context=CONTEXT), write_projector(tmp_path / "p.gguf", N_EMBD)
    picture = png(width=112, height=84)
    with servers(tmp_path, cache) as started:
        server = started.start(model=model, mmproj=mmproj, ctx=CONTEXT, slots=2, threads=1, encoder_threads=1)
        with server.connect() as connection:
            first = connection.post(completion(picture), "/v1/completions")
            text = connection.post(completion(), "/v1/completions")
            second = connection.post(completion(picture), "/v1/completions")
            other = connection.post(completion(png(2, 112, 84)), "/v1/completions")

    assert [reply.status for reply in (first, text, second, other)] == [200] * 4, first.body
    assert first.json["usage"]["prompt_tokens"] >= text.json["usage"]["prompt_tokens"] + n_rows
    assert first.json["choices"][0]["text"]
    assert second.json["choices"] == first.json["choices"]
    assert other.json["choices"] != first.json["choices"]
