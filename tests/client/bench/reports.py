"""Reports made of outcomes that are written by hand."""

from __future__ import annotations

from array import array

from corosrv.client.bench import figures as figures
from corosrv.client.bench.report import PointFigures, Report, Section, ServerFigures, look
from corosrv.client.bench.target import Failure, FailureKind, RequestOutcome


def outcomes(n: int, speed: float) -> list[RequestOutcome]:
    """Streams of ten tokens, `speed` a second, after twice the time of one."""
    times = [(i + 2) / speed for i in range(10)]
    return [RequestOutcome(0.0, times[-1], array("d", times), 10, 10, 24, True, "length") for _ in range(n)]


def server(name: str, *speeds: float, n: int = 8) -> ServerFigures:
    """One that had a round of each speed."""
    rounds = [outcomes(n, speed) for speed in speeds]
    return ServerFigures(
        name,
        f"http://{name}/v1",
        "model",
        [figures.figures(one, (0.1,), 2, 10) for one in rounds],
        figures.curve(ttft for one in rounds for ttft in figures.ttfts(one)),
        figures.curve(gap for one in rounds for gap in figures.gaps(one)),
    )


def section(*servers: ServerFigures, mix: str = "short", clients: tuple[int, ...] = (1, 8)) -> Section:
    points = [PointFigures(f"{n} clients", n, 0.0, 8, list(servers)) for n in clients]
    return Section("Short <chats> & more", mix, 10, 3, "corosrv bench --url URL", True, points)


def pair() -> Section:
    """The first one twice as fast as the second."""
    return section(server("corosrv", 20.0, 22.0, 18.0), server("other", 10.0, 11.0, 9.0))


def report(*sections: Section) -> Report:
    return Report(look(), list(sections or (pair(),)))


def failing() -> ServerFigures:
    bad = RequestOutcome(0.0, 1.0, failure=Failure(FailureKind.STATUS, "out of <memory>", 500))
    return ServerFigures("broken", "http://broken/v1", "model", [figures.figures([bad, bad], (0.1,), 2, 10)])
