"""Models of a Hugging Face hub: chosen as llama-server does, downloaded into the hub's own cache, listed, removed."""
