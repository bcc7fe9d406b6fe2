"""Runs the garbage collector's full collections while nobody waits, instead of in the middle of a stream."""

from __future__ import annotations

import atexit
import gc

# Python's own number: a full collection is due after so many of the generation below.
_DUE = 10
# Requests leave no cycles that live long, so that the full collection can be put off; not for ever, all the same.
_OVERDUE = 2000
_NEVER = 1_000_000
# With so few clients there is little to look through besides what is frozen.
_FEW = 64


class FullCollections:
    """Puts the collector's full collections where they delay nobody. For the process that serves, in its main thread.

    What is there when serving begins lives for ever, and so does what the first requests load: it is frozen, which
    means that the collector never looks at it again. A model loaded later adds little.
    """

    def __init__(self) -> None:
        self._is_warm = False

    def take_over(self) -> None:
        """Leaves full collections to `look`. Blocks for a tenth of a second: call it before serving."""
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        gc.collect()
        gc.freeze()
        atexit.register(unfreeze)

    def look(self, n_clients: int) -> None:
        """Collects if that is due and few clients are connected. To be called about once a second."""
        if gc.get_count()[2] < (_DUE if n_clients <= _FEW else _OVERDUE):
            return
        gc.collect()
        if not self._is_warm and n_clients == 0:
            self._is_warm = True
            gc.freeze()


def unfreeze() -> None:
    """Ends the freezing, with all objects in the order of their age, in which Python expects to finalise them."""
    gc.freeze()
    gc.unfreeze()
