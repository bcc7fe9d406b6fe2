"""A predictor whose inputs are lists, maps and anything."""

from typing import Any

from corosrv.worker import BaseRunner


class Runner(BaseRunner):
    def run(
        self,
        names: list[str] | None = None,
        numbers: list[float] | None = None,
        table: dict[str, Any] | None = None,
        anything: Any = None,
    ) -> int:
        return sum(len(given) for given in (names, numbers, table) if given is not None)
