"""llama-server's own surface: its completion, its tokens, and what it tells about slots, adapters and settings.

Errors have OpenAI's shape, as llama-server's nearly do.
"""
