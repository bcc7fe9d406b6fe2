"""Brings embedding rows from an encoder process to the language side, in blocks of one shared pool."""
