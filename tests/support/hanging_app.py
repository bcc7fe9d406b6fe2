"""corosrv with one route that computes for ever, and so keeps everybody waiting."""

from __future__ import annotations

from corosrv.app import application


@application.get("/hang")
def hang() -> str:
    while True:
        pass
