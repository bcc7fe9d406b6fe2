"""Captures what is printed in the worker process, and finds the prediction that it belongs to."""
