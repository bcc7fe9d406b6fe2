"""The ground of the other wings: errors, waiting, the processor's time, and calls to the outside.

`errors` is the one tree of errors. `waits` lets greenlets wait for threads, descriptors and clocks. `processor` counts
the processor's time and shares it. `outgoing` checks and makes connections to addresses that a client names.

Imports no other wing.
"""

__version__ = "0.2.0"
