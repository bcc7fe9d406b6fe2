"""Checks and decodes what clients send: texts, JSON, and the fields of a body. Knows no HTTP."""
