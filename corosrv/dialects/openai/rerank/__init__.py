"""Reranking: bodies to jobs, scores to answers."""
