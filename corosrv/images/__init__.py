"""Images: read from requests, encoded in a process of their own, and handed to the decode loop as rows.

The modules here read an image: where it comes from, what it is, how large, and its pixels. `vision` starts encoders and
asks them. `encoder` is that process. `transfer` hands its rows over in shared memory.

Imports base, formats, contracts, workers, models and fleet.
"""
