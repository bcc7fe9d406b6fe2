"""The engine: a native decode loop, and readers that wait on eventfds through gevent's hub."""

from corosrv.engine.engine import Engine
from corosrv.engine.reader import Reader
from corosrv.jobs import Chunk

__all__ = ["Chunk", "Engine", "Reader"]
