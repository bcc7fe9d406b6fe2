"""A handler that kills its process with each call: others beside it are answered."""

from __future__ import annotations

from typing import Any

from tests.serve.server import REPOSITORY, SERVE, Servers

N_CALLS = 15  # of each handler; five crashes in a row would make a pool loop
PATIENCE = 30_000  # milliseconds for a call that waits for the next process


def test_a_handler_that_kills_its_process_takes_no_other_away(start: Servers) -> None:
    server = start.start(*SERVE, f"{REPOSITORY}/tests/apps/faulty.py:app", model="")
    body = {"inputs": [{"name": "name", "datatype": "BYTES", "shape": [1], "data": ["it"]}]}
    headers = {"X-Request-Timeout-Ms": str(PATIENCE)}

    def call(model: str) -> Any:
        with server.connect() as connection:
            return connection.post(body, f"/v2/models/{model}/infer", headers)

    killed, others = [call("kill")], [call("echo").status]
    killed += [call("kill") for _ in range(N_CALLS - 1)]  # one behind the other: it is in quarantine for 10 s only
    others += [call("echo").status for _ in range(N_CALLS - 1)]

    assert others == [200] * N_CALLS
    assert [answer.status for answer in killed[2:]] == [503] * (N_CALLS - 2)
    assert "the model 'kill' cannot be called now: its worker processes died" in killed[2].json["error"]
    assert 1 <= int(killed[2].headers["retry-after"]) <= 10
    assert server.log.count("is in quarantine for 10 s") == 1
