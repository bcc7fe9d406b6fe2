"""Short chats that a front forwards: `python -m tests.load.upstream_chats [--seconds 5] [--rounds 3] [--profile]`.

The upstream is one corosrv with the synthetic model. First one streamed chat at a time, straight to the upstream and
through the front in turn: prints the median time to the first token of both. Then 32 connections ask for one token
each, again and again: prints how many chats a second are answered, and the processor time that one takes of the front's
thread. --profile: where the front spends its time (needs py-spy).
"""

from __future__ import annotations

import statistics

from tests.load.chats import N_CONNECTIONS, read_options, show, throughput
from tests.load.clients import LoadClient, request
from tests.load.upstream_servers import chat, corosrv_server, load_front, machine_load, upstream_servers

PATH = "/v1/chat/completions"
STREAM = request(PATH, chat("Say a word.", 2, stream=True))
SHORT = request(PATH, chat("Say one word.", 1))
COMMAND = corosrv_server(N_CONNECTIONS, 512, "synthetic:?tokens_per_s=0")
N_STREAMS = 300


def first_token(port: int) -> float:
    """Returns the seconds from the connection to the first token of a chat that runs alone."""
    client = LoadClient(("127.0.0.1", port))
    client.open(STREAM)
    outcome = client.run(10.0)
    assert outcome.n_done == 1, outcome.failures
    return outcome.first_events[0]


def first_tokens(direct: int, forwarded: int, count: int) -> list[tuple[float, float]]:
    """Asks two ports in turn, so that what else the machine does meets both. Returns the seconds of each pair."""
    return [(first_token(direct), first_token(forwarded)) for _ in range(count)]


def main() -> None:
    options = read_options(__doc__)
    print(machine_load())
    with upstream_servers(COMMAND) as (upstream,), load_front([upstream], N_CONNECTIONS) as front:
        throughput(front.server, SHORT, 1.0)  # warm
        pairs = first_tokens(upstream.port, front.server.address[1], N_STREAMS)
        direct, forwarded = (1e3 * statistics.median(seconds) for seconds in zip(*pairs, strict=True))
        print(
            f"first token p50: direct {direct:.2f} ms, forwarded {forwarded:.2f} ms, added {forwarded - direct:.2f} ms"
        )
        show(front.server, SHORT, options)
    print(machine_load())


if __name__ == "__main__":
    main()
