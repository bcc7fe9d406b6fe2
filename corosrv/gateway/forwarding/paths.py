"""Names the paths that are forwarded: those by which llama-server, vLLM, SGLang and corosrv generate, and the like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForwardedPath:
    """Describes one path that takes a POST with a JSON object."""

    path: str
    tag: str  # its heading in the API document
    summary: str
    is_anthropic: bool = False  # its errors have the form of Anthropic's; all others that of OpenAI's
    is_local: bool = True  # a model that is served here answers it, too


def _paths() -> tuple[ForwardedPath, ...]:
    chat, text, tokens, embeddings = "Chat", "Text", "Tokens", "Embeddings"
    rows: list[ForwardedPath] = []

    def add(tag: str, summary: str, *paths: str, is_local: bool = True) -> None:
        rows.extend(ForwardedPath(path, tag, summary, is_local=is_local) for path in paths)

    add(chat, "Answer a conversation", "/v1/chat/completions", "/chat/completions")
    add(chat, "Count a conversation's tokens", "/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
    add(text, "Continue a text", "/v1/completions", "/completions", "/completion")
    add(text, "Fill a gap in a text", "/infill")
    add(text, "Continue a text, as SGLang has it", "/generate", is_local=False)
    add("Responses", "Answer a conversation, in the newer form", "/v1/responses", "/responses")
    rows.append(ForwardedPath("/v1/messages", "Messages", "Answer a conversation, in Anthropic's form", True))
    rows.append(ForwardedPath("/v1/messages/count_tokens", "Messages", "Count a conversation's tokens", True))
    add(embeddings, "Make vectors of texts", "/v1/embeddings", "/embeddings", "/embedding")
    add(embeddings, "Rank documents", "/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
    add(embeddings, "Score pairs of texts", "/v1/score", "/score", is_local=False)
    add(embeddings, "Pool a model's vectors", "/pooling", "/encode", is_local=False)
    add(embeddings, "Classify texts", "/classify", "/v1/classify", is_local=False)
    add(tokens, "Turn a text into tokens", "/tokenize")
    add(tokens, "Turn tokens into a text", "/detokenize")
    add(tokens, "Turn a text into tokens, or back", "/v1/tokenize", "/v1/detokenize", is_local=False)
    add(tokens, "Render a conversation as a prompt", "/apply-template")
    return tuple(rows)


FORWARDED = _paths()
# What a client of llama-server asks first.
PROPS = ForwardedPath("/props", "Models", "Describe a model and its defaults, as llama-server has it")
BY_PATH = {row.path: row for row in FORWARDED}
# Slots show what others ask, and adapters change what they get: both are of one server, and for its operator.
OF_ONE_SERVER = (("/slots", "GET"), ("/slots/<slot>", "POST"), ("/lora-adapters", "GET"), ("/lora-adapters", "POST"))
MODELS = ("/v1/models", "/models")
