"""Turns chat requests of any dialect into jobs, and the chunks of those jobs into the parts of an answer.

A chat dialect converts its bodies to a `Conversation`, and `Part`s to its answers; this package does the work between.
"""
