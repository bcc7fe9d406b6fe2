"""The worker process: everything that runs around the author's code."""
