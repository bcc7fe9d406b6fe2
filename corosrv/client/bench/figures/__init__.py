"""Computes figures from the outcomes of requests. Pure."""
