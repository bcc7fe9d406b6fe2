"""Checks, merges and converts JSON schemas to the rules of a grammar, type by type."""
