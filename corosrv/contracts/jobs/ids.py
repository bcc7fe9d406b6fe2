"""Makes the names of requests and answers."""

from __future__ import annotations

import random


def new_id(prefix: str) -> str:
    """Returns a name that no other request or answer has. No secret: who has seen hundreds can tell the next one.

    Python seeds the generator anew in each forked process. The system's own would cost a system call each time.
    """
    return f"{prefix}{random.getrandbits(128):032x}"
