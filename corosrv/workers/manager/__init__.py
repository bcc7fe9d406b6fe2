"""Keeps pools of worker processes: how many there should be, and the processes themselves."""
