"""Anthropic's Messages API: bodies to conversations, blocks to content blocks, errors in its own shape."""
