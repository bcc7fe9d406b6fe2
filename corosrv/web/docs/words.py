"""Texts of the API document: its title, its introduction and its headings."""

TITLE = "corosrv"
TEXT = (
    "A cooperative model server that speaks the protocols of OpenAI, Anthropic and llama-server. "
    "If the server has API keys, every request except the one for health must carry one: "
    "`Authorization: Bearer KEY` or `X-Api-Key: KEY`."
)
# In the order of the page.
TAGS = {
    "Chat": "Conversations, rendered with the model's chat template.",
    "Text": "Prompts without a chat template.",
    "Responses": "OpenAI's newer form of conversations, which the server can store.",
    "Messages": "Anthropic's form of conversations.",
    "Inference": "KServe's v2 protocol, the Open Inference Protocol: models and capabilities that take tensors.",
    "Embeddings": "Vectors of texts, and ranking of documents.",
    "Tokens": "Conversions between texts and tokens.",
    "Groups": "Requests that belong together, and are aborted together.",
    "Models": "The models and their states.",
    "Server": "Health, metrics and documentation of the server.",
}
