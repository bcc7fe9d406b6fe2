"""Contracts between the other wings: jobs and their readers, settings, and keys of repeated requests.

`jobs` has Job, Chunk, Reader and Worker, which dialects and engines meet in. `settings` reads what operators decide.
`idempotency` keeps the answer of a request under its key.

Imports base and formats.
"""
