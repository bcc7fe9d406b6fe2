"""The formats in which models write calls of tools and thoughts: one description, learnt from a chat template.

Pure: knows templates as functions that render conversations, and neither engines nor requests.
"""
