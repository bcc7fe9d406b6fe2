"""Shares what all dialects that generate do: fields to jobs, the flow of a request, and what an answer has used.

A dialect adds a translation in (its bodies to `Call`s) and a translation out (an `Answer`), and nothing of the flow.
"""
