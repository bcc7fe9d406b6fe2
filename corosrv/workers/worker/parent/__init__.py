"""The server's side of a worker process: its start, its slots, its end."""
