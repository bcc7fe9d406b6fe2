"""llama-server's own surface: completions, tokens, slots, adapters, settings, metrics, models loaded by hand.

Errors have OpenAI's shape, as llama-server's nearly do.
"""
