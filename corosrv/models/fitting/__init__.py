"""Fits models into memory: what a file's model takes, what the machine has, and the slots and context between them."""
