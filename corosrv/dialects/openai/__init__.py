"""OpenAI's protocol: bodies to jobs, chunks to answers. Knows no worker."""
