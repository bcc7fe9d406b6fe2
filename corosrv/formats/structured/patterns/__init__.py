"""Regular expressions as JSON schemas have them, from text to tree."""
