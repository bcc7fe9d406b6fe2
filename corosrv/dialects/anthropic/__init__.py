"""Anthropic's Messages API: converts bodies to conversations, blocks to content blocks, and errors to its form."""
