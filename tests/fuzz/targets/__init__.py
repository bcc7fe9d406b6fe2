"""What is fuzzed, a module each: `EXAMPLES`, a strategy of JSON values, and `check`, which fails for a bug."""
