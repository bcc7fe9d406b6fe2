"""Text completions: bodies to jobs, chunks to answers."""
