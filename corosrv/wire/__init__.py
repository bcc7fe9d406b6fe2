"""Messages between processes: their frames, formats and channels."""
