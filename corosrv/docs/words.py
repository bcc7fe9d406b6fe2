"""What the API's document says beside what routes say about themselves."""

TITLE = "corosrv"
TEXT = (
    "A cooperative model server. Clients of OpenAI, Anthropic and llama-server find here what they expect. "
    "Where keys are set, every request but the one for health carries one: `Authorization: Bearer KEY`, or "
    "`X-Api-Key: KEY`."
)
# In the order of the page.
TAGS = {
    "Chat": "Conversations, written as the model's own template has them.",
    "Text": "Prompts as they stand.",
    "Responses": "OpenAI's newer form of conversations, kept on the server if wanted.",
    "Messages": "Anthropic's form of conversations.",
    "Embeddings": "Texts as vectors, and documents ranked.",
    "Tokens": "What a model makes of a text.",
    "Models": "What is served, and where each model stands.",
    "Server": "The server itself.",
}
