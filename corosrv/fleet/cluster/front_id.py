"""Makes the name of this process among all fronts."""

from __future__ import annotations

import os
import re
import secrets
import socket


def host_name() -> str:
    """Returns the machine's name in characters that stand in keys as they are."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:60]


def new_front_id() -> str:
    """Returns an id that no front has had before: each start of a process makes a new one."""
    return f"{host_name()}-{os.getpid()}-{secrets.token_hex(4)}"
