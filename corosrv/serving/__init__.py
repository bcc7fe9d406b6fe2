"""A server and its parts: what each has to start, whether it is ready, and in which order they stop.

Imports all other wings but client.
"""
