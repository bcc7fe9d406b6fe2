"""Reads a predictor's inputs and output from its annotations, and describes them in an OpenAPI document."""
