"""Reads the images of requests: where they come from, what they are, how large, and their pixels."""
