"""Chat completions: bodies to conversations, parts to answers."""
