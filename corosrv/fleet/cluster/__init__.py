"""Holds what several servers share through a Redis or Valkey server: its connections, and what is kept there."""
