"""Conversations, whatever their dialect: what is asked for, and what the answer consists of.

A chat dialect turns its bodies into a `Conversation` and `Part`s into its answers; what lies between is here.
"""
