"""Ollama's API: converts bodies to jobs, chunks to lines of JSON, and asks the pool what its clients ask of models."""
