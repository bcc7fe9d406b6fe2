"""From a JSON schema to the rules of a grammar: checked, merged and written, type by type."""
