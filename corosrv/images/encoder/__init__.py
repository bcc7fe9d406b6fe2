"""The encoder process: turns images into embedding rows, and writes them into blocks lent to it.

A crash of libmtmd ends this process and no other. `__main__` starts it, `process` joins its two threads: the control
thread reads messages and writes rows, the main thread encodes, which cannot be interrupted. `side` holds the states of
the transfers and touches neither; `mtmd` is the only user of libmtmd, `writer` knows the pool.
"""
