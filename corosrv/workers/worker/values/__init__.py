"""Inputs and outputs of one prediction: Python values, JSON and files."""
