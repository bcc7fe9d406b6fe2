"""A cooperative model server: one OS thread, thousands of open streams."""

__version__ = "0.1.0"
