"""Gives calls to the workers that answer them: who serves what, who waits for whom, and the permits to run."""
