"""What runs in the worker process around the author's code."""
