"""Formats of data: bodies, tensors, calls inside a model's text, and the grammars of an answer's form.

`bodies` reads and writes JSON and multipart bodies. `tensors` has KServe's data types. `callformats` learns how a model
writes tool calls. `structured` turns JSON schemas, regular expressions and structural tags into grammars.

Imports base.
"""
