"""Follows the recipes of docs/how-to.md in a copy of the tree, which may be changed only where a recipe says so.

Followed to the end: a sampler (compiled in the copy), a route, a dialect, a setting, an error, partial answers, and a
kind of worker, in the server's own process. Not followed here: encoders (tests/support/token_encoder.py is one, and
tests/images/encoder runs it) and kernels.
"""
