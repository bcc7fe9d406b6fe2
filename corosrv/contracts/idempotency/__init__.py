"""Answers that were given under an Idempotency-Key: what a key is, and how long its answer is kept."""
