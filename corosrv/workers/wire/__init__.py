"""Carries messages between processes: their frames, formats and channels."""
