"""Keeps large values that calls pass to each other by reference."""
