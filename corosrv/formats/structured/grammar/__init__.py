"""GBNF: its text, the rules while a grammar is made, and whether they come to an end."""
