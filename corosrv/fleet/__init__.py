"""Other servers: upstreams that this one forwards to, and the fronts and workers of its cluster.

`upstreams` probes servers, chooses one and passes its answer on. `cluster` shares calls through Redis.

Imports base, formats, contracts, workers and models.
"""
