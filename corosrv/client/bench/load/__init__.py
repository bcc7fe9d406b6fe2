"""Puts a load on a server: prompts, schedule, processes, and the outcome of each request."""
