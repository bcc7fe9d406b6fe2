"""Several models in one process: loaded when they are asked for, unloaded when others need their room."""

from corosrv.models.pool import ModelPool

__all__ = ["ModelPool"]
