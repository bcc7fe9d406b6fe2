"""Embeddings: bodies to jobs, vectors to answers, in OpenAI's shape and in llama-server's own."""
