"""Runs each script of the shared queue in a real Redis."""

from __future__ import annotations

import time
from typing import Any

import pytest

from corosrv.fleet.cluster import queue_scripts
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.queue_names import KeyNames, QueueNames

NAMES = QueueNames(KeyNames("test"), "front-a")
STREAMS = NAMES.streams("app", "model:m:")
ANSWERED_BY, OTHER = "front-b", "front-c"


class QueueSteps:
    """Runs scripts as a front does."""

    def __init__(self, client: RedisClient) -> None:
        self.client = client

    def run(self, text: str, keys: Any, arguments: Any) -> Any:
        return self.client.script(text).run(keys, arguments)

    def enqueue(
        self,
        call: str,
        band: int = 2,
        max_queue: int = 100,
        ms: int = 0,
        is_idempotent: int = 0,
        body: bytes = b"body",
        large: bytes = b"",
        limit: int = 3,
    ) -> Any:
        fields = ("c", call, "f", NAMES.front, "i", is_idempotent, "t", limit, "k", "", "b", body)
        keys = (*STREAMS, NAMES.bell, NAMES.body(call))
        reply = self.run(queue_scripts.ENQUEUE, keys, (band, max_queue, ms, "app|m", 60_000, large, *fields))
        return reply[1].decode() if reply[0] == b"queued" else reply

    def pull(self, front: str = ANSWERED_BY, n: int = 10, n_low: int = 0, hold: int = 0) -> Any:
        return self.run(
            queue_scripts.PULL, (NAMES.epoch, *STREAMS), (front, n, n_low, hold, NAMES.bodies, NAMES.dead_letters)
        )

    def calls(self, *arguments: Any, **options: Any) -> list[str]:
        return [entry[3].decode() for entry in self.pull(*arguments, **options)[3]]

    def start(self, id: str, call: str, front: str = ANSWERED_BY, delivery: int = 1, is_claimed: bool = False) -> Any:
        keys = (STREAMS[1], NAMES.mark(call))
        return self.run(queue_scripts.START, keys, (id, front, delivery, int(is_claimed)))

    def chunk(self, call: str, front: str = ANSWERED_BY, delivery: int = 1) -> Any:
        return self.run(queue_scripts.CHUNK, (NAMES.mark(call), NAMES.own_stream), (front, delivery, call, b"piece"))

    def finish(self, id: str, call: str, front: str = ANSWERED_BY, delivery: int = 1) -> Any:
        keys = (STREAMS[1], NAMES.mark(call), NAMES.own_stream, NAMES.body(call))
        return self.run(queue_scripts.FINISH, keys, (id, front, delivery, call, 0, b"answer"))

    def claim(self, front: str = OTHER, idle: int = 0, cursor: str = "0-0", count: int = 10) -> Any:
        arguments = (
            *(front, idle, cursor, count, NAMES.marks, NAMES.bodies, NAMES.front_streams),
            *(b"lost", b"dead"),
        )
        return self.run(queue_scripts.CLAIM, (STREAMS[1], NAMES.dead_letters), arguments)

    def release(self, id: str, call: str, front: str = ANSWERED_BY) -> Any:
        keys = (STREAMS[1], NAMES.mark(call), NAMES.bell)
        return self.run(queue_scripts.RELEASE, keys, (id, front, 15_000, "app|m"))

    def withdraw(self, id: str, call: str) -> Any:
        keys = (STREAMS[1], NAMES.mark(call), NAMES.body(call))
        return self.run(queue_scripts.WITHDRAW, keys, (id, call, NAMES.front_streams))

    def told(self, front: str = NAMES.front) -> list[dict[str, str]]:
        """Returns what a front was told, without pieces that nobody looks at."""
        messages = self.client.execute("XRANGE", NAMES.front_stream(front), "-", "+")
        texts = [[text.decode() for text in flat] for _, flat in messages]
        return [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in texts]

    def length(self) -> int:
        return sum(self.client.execute("XLEN", stream) for stream in STREAMS)


@pytest.fixture
def steps(client: RedisClient) -> QueueSteps:
    steps = QueueSteps(client)
    steps.pull()  # the first one of a new Redis
    return steps


# Enqueue.


def test_an_entry_comes_out_as_it_went_in(steps: QueueSteps):
    id = steps.enqueue("c1", is_idempotent=1)

    ((place, entry_id, number, call, front, deadline, body),) = steps.pull()[3]

    assert (place, entry_id.decode(), number, call) == (1, id, 1, b"c1")
    assert (front, deadline, body) == (b"front-a", b"0", b"body")


def test_a_full_queue_refuses_and_counts_what_waits_in_all_bands(steps: QueueSteps):
    steps.enqueue("c1", band=1)
    steps.enqueue("c2", band=3)

    assert steps.enqueue("c3", max_queue=2) == [b"full", 2]
    assert steps.length() == 2


def test_work_is_never_trimmed_and_the_bell_is(steps: QueueSteps):
    for number in range(1000):
        steps.enqueue(f"c{number}", max_queue=10_000)

    assert steps.length() == 1000
    assert steps.client.execute("XLEN", NAMES.bell) < 600


def test_calls_that_run_leave_room_in_the_queue(steps: QueueSteps):
    steps.enqueue("c1")
    steps.pull(n=1)

    assert isinstance(steps.enqueue("c2", max_queue=1), str)


def test_a_large_body_has_a_key_that_expires_and_comes_with_its_entry(steps: QueueSteps):
    steps.enqueue("c1", body=b"", large=b"x" * 100_000)

    ((*_, body),) = steps.pull()[3]

    assert len(body) == 100_000
    assert 0 < steps.client.execute("PTTL", NAMES.body("c1")) <= 60_000


def test_a_deadline_is_one_of_redis_clock(steps: QueueSteps):
    steps.enqueue("c1", ms=5000)

    _, _, now, ((*_, deadline, _),), *_ = steps.pull()

    assert 0 < int(deadline) - int(now) <= 5000


def test_each_entry_rings_the_bell(steps: QueueSteps):
    steps.enqueue("c1")

    ((_, fields),) = steps.client.execute("XRANGE", NAMES.bell, "-", "+")
    assert fields == [b"q", b"app|m"]


# Pull.


def test_entries_come_by_bands_and_within_one_in_their_order(steps: QueueSteps):
    for call, band in (("low", 3), ("normal-1", 2), ("normal-2", 2), ("high", 1)):
        steps.enqueue(call, band)

    assert steps.calls() == ["high", "normal-1", "normal-2", "low"]


def test_no_more_are_read_than_are_wanted(steps: QueueSteps):
    for number in range(3):
        steps.enqueue(f"c{number}", number + 1)

    assert len(steps.calls(n=2)) == 2
    assert steps.pull(n=0)[4] == [0, 0, 1]


def test_low_entries_come_first_when_it_is_their_turn(steps: QueueSteps):
    for call, band in (("high", 1), ("low-1", 3), ("low-2", 3)):
        steps.enqueue(call, band)

    assert steps.calls(n=2, n_low=1) == ["low-1", "high"]


def test_an_entry_is_delivered_to_one_front(steps: QueueSteps):
    steps.enqueue("c1")

    assert (steps.calls(), steps.calls(front=OTHER)) == (["c1"], [])


STRANGE = [
    ("x", "y"),
    ("c", "c9", "f", "front-a", "b", "body", "d", "soon", "t", 3),
    ("c", "c9", "f", "front-a", "b", "body", "d", 0),
    ("c", b"\xff", "f", "front-a", "b", "body", "d", 0, "t", 3),
    ("c", "c9", "b", "body", "d", 0, "t", 3),
    [word for number in range(9000) for word in (number, "y")],
]


@pytest.mark.parametrize("fields", STRANGE, ids=["other", "deadline", "no tries", "bytes", "no front", "many"])
def test_an_entry_that_no_front_has_written_is_set_aside_and_holds_nobody_up(steps: QueueSteps, fields: Any):
    steps.client.execute("XADD", STREAMS[1], "*", *fields)
    steps.enqueue("c1")

    *_, entries, _, n_strange = steps.pull()

    assert ([entry[3] for entry in entries], n_strange) == ([b"c1"], 1)
    assert steps.client.execute("XLEN", NAMES.dead_letters) == 1
    assert steps.length() == 1


@pytest.mark.parametrize("fields", STRANGE, ids=["other", "deadline", "no tries", "bytes", "no front", "many"])
def test_an_entry_that_no_front_has_written_is_not_claimed(steps: QueueSteps, fields: Any):
    steps.enqueue("c1")
    steps.client.execute("XADD", STREAMS[1], "*", *fields)
    steps.client.execute("XREADGROUP", "GROUP", queue_scripts.GROUP, OTHER, "STREAMS", STREAMS[1], ">")

    _, _, entries = steps.claim()

    assert [entry[3] for entry in entries] == [b"c1"]
    assert steps.client.execute("XLEN", NAMES.dead_letters) == 1
    assert steps.length() == 1


def test_a_group_that_is_gone_is_made_from_the_beginning(steps: QueueSteps):
    steps.enqueue("c1")
    steps.client.execute("XGROUP", "DESTROY", STREAMS[1], queue_scripts.GROUP)

    assert steps.calls() == ["c1"]


def test_a_redis_that_knows_of_no_run_before_it_lets_read_at_once(steps: QueueSteps):
    steps.client.execute("DEL", NAMES.epoch)
    steps.enqueue("c1")

    assert steps.calls(hold=60_000) == ["c1"]


def test_nothing_is_read_for_a_while_after_another_run_of_redis_was_seen(steps: QueueSteps):
    steps.enqueue("c1")
    steps.client.execute("HSET", NAMES.epoch, "run", "an-earlier-one")

    _, hold, _, entries, *_ = steps.pull(hold=60_000)

    assert hold > 0
    assert entries == []
    assert steps.pull(hold=60_000)[3] == []
    steps.client.execute("HSET", NAMES.epoch, "until", 0)
    assert steps.calls() == ["c1"]


# Start.


def test_an_entry_that_is_gone_does_not_start(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.withdraw(id, "c1")

    assert steps.start(id, "c1") == b"gone"


def test_an_overdue_entry_does_not_start(steps: QueueSteps):
    id = steps.enqueue("c1", ms=1)
    steps.pull()
    limit = time.monotonic() + 5

    while (reply := steps.start(id, "c1")) == b"run" and time.monotonic() < limit:
        pass

    assert reply == b"overdue"


def test_a_start_is_repeated_by_the_same_front_alone(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()

    assert [steps.start(id, "c1"), steps.start(id, "c1"), steps.start(id, "c1", OTHER)] == [b"run", b"run", b"other"]


def test_an_entry_that_another_front_has_claimed_does_not_start(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.claim()

    assert steps.start(id, "c1") == b"other"


def test_a_started_entry_whose_delivery_redis_forgot_does_not_start_again(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.start(id, "c1")
    steps.client.execute("XGROUP", "DESTROY", STREAMS[1], queue_scripts.GROUP)
    delivered_again = steps.calls(OTHER)

    fate = steps.start(id, "c1", OTHER)

    assert (delivered_again, fate) == (["c1"], b"other")
    pending = steps.client.execute("XPENDING", STREAMS[1], queue_scripts.GROUP, "-", "+", 10)
    assert [row[1] for row in pending] == [ANSWERED_BY.encode()]


# Replies.


def test_a_finish_replies_and_leaves_nothing_of_the_entry(steps: QueueSteps):
    id = steps.enqueue("c1", body=b"", large=b"large")
    steps.pull()
    steps.start(id, "c1")

    assert steps.finish(id, "c1") == 1
    assert steps.told() == [{"c": "c1", "k": "end", "n": "1", "f": ANSWERED_BY, "m": "0", "b": "answer"}]
    assert steps.length() == 0
    assert steps.client.execute("EXISTS", NAMES.mark("c1"), NAMES.body("c1")) == 0
    assert steps.client.execute("XPENDING", STREAMS[1], queue_scripts.GROUP)[0] == 0


def test_the_stream_of_a_front_that_nobody_reads_goes_by_itself(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.finish(id, "c1")

    assert 0 < steps.client.execute("PTTL", NAMES.own_stream) <= queue_scripts.FRONT_MS


def test_a_piece_of_an_answer_is_told_and_noted(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.start(id, "c1")

    assert steps.chunk("c1") == 1
    assert steps.told() == [{"c": "c1", "k": "chunk", "n": "1", "f": ANSWERED_BY, "b": "piece"}]
    assert steps.client.execute("GET", NAMES.mark("c1")).endswith(b"|sent")
    assert steps.client.execute("PTTL", NAMES.mark("c1")) > 0


def test_a_front_whose_call_was_withdrawn_sends_no_more_pieces(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.start(id, "c1")
    steps.withdraw(id, "c1")

    assert steps.chunk("c1") == 0
    assert steps.told() == []


def test_a_front_whose_call_another_has_started_sends_no_more_pieces(steps: QueueSteps):
    id = steps.enqueue("c1", is_idempotent=1)
    steps.pull()
    steps.start(id, "c1")
    steps.claim()
    steps.start(id, "c1", OTHER, 2, is_claimed=True)

    assert (steps.chunk("c1"), steps.chunk("c1", OTHER, 2)) == (0, 1)


def test_read_messages_are_trimmed(steps: QueueSteps):
    ids = [steps.client.execute("XADD", NAMES.own_stream, "*", "a", number) for number in range(3)]

    steps.run(queue_scripts.TRIM, [NAMES.own_stream], [ids[-1]])

    assert steps.client.execute("XLEN", NAMES.own_stream) == 1


# Withdraw, release, renew.


def test_a_withdrawn_entry_leaves_nothing(steps: QueueSteps):
    id = steps.enqueue("c1", body=b"", large=b"large")

    assert steps.withdraw(id, "c1") == 0
    assert (steps.length(), steps.calls()) == (0, [])
    assert steps.client.execute("EXISTS", NAMES.body("c1")) == 0


def test_the_front_that_runs_a_withdrawn_call_is_told_to_cancel_it(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.start(id, "c1")

    assert steps.withdraw(id, "c1") == 1
    assert steps.told(ANSWERED_BY) == [{"c": "c1", "k": "cancel"}]


def test_a_released_entry_is_there_for_the_next_claim(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.start(id, "c1")

    released = steps.release(id, "c1")

    assert released == 1
    assert steps.client.execute("XRANGE", NAMES.bell, "-", "+")[-1][1] == [b"q", b"app|m", b"k", b"idle"]
    assert [entry[3] for entry in steps.claim(idle=15_000)[2]] == [b"c1"]


def test_a_front_releases_nothing_that_another_has_taken(steps: QueueSteps):
    id = steps.enqueue("c1", is_idempotent=1)
    steps.pull()
    steps.start(id, "c1")
    steps.claim()
    steps.start(id, "c1", OTHER, delivery=2, is_claimed=True)

    assert steps.release(id, "c1") == 0
    assert steps.client.execute("GET", NAMES.mark("c1")) == f"{OTHER}|2".encode()
    assert steps.client.execute("XPENDING", STREAMS[1], "fronts", "-", "+", 10)[0][1] == OTHER.encode()


def test_a_renewed_entry_is_not_idle_and_its_deliveries_stay(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.client.execute("XCLAIM", STREAMS[1], "fronts", ANSWERED_BY, 0, id, "IDLE", 20_000, "JUSTID")

    lost = steps.run(queue_scripts.RENEW, [STREAMS[1]], [ANSWERED_BY, id])

    ((_, _, idle, deliveries),) = steps.client.execute("XPENDING", STREAMS[1], "fronts", "-", "+", 10)
    assert (lost, deliveries) == ([], 1)
    assert idle < 15_000
    assert steps.claim(idle=15_000)[2] == []


def test_a_renewal_tells_what_another_front_has_taken_and_leaves_it_there(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.claim()

    assert steps.run(queue_scripts.RENEW, [STREAMS[1]], [ANSWERED_BY, id]) == [0]
    assert steps.client.execute("XPENDING", STREAMS[1], "fronts", "-", "+", 10)[0][1] == OTHER.encode()


# Claims.


def test_a_claimed_entry_that_had_not_started_runs_elsewhere(steps: QueueSteps):
    steps.enqueue("c1")
    steps.pull()

    cursor, _, ((_, _, number, call, *_),) = steps.claim()

    assert (cursor, number, call) == (b"0-0", 2, b"c1")


def test_a_claimed_entry_that_had_started_is_answered_and_not_run_again(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.start(id, "c1")

    assert steps.claim()[2] == []
    assert [(told["k"], told["b"]) for told in steps.told()] == [("end", "lost")]
    assert steps.length() == 0


def test_a_claimed_entry_of_an_idempotent_handler_runs_again(steps: QueueSteps):
    id = steps.enqueue("c1", is_idempotent=1)
    steps.pull()
    steps.start(id, "c1")

    assert len(steps.claim()[2]) == 1
    assert steps.start(id, "c1", OTHER, 2, is_claimed=True) == b"run"


def test_a_claimed_entry_is_not_run_again_once_its_client_has_a_piece(steps: QueueSteps):
    id = steps.enqueue("c1", is_idempotent=1)
    steps.pull()
    steps.start(id, "c1")
    steps.chunk("c1")

    assert steps.claim()[2] == []
    assert [told["k"] for told in steps.told()] == ["chunk", "end"]


def test_the_fourth_delivery_is_a_dead_letter(steps: QueueSteps):
    steps.enqueue("c1", is_idempotent=1)
    steps.pull()
    claims = [len(steps.claim(f"front-{number}")[2]) for number in range(3)]

    assert claims == [1, 1, 0]
    assert [(told["k"], told["b"]) for told in steps.told()] == [("end", "dead")]
    ((_, fields),) = steps.client.execute("XRANGE", NAMES.dead_letters, "-", "+")
    assert b"c1" in fields
    assert steps.length() == 0


def test_claims_follow_their_cursor_to_the_end(steps: QueueSteps):
    for number in range(7):
        steps.enqueue(f"c{number}")
    steps.pull()
    calls, cursor, n_passes = [], b"0-0", 0

    while n_passes == 0 or cursor != b"0-0":
        cursor, _, entries = steps.claim(cursor=cursor.decode(), count=2)
        calls += [entry[3].decode() for entry in entries]
        n_passes += 1

    assert calls == [f"c{number}" for number in range(7)]
    assert n_passes > 1


def test_an_entry_that_somebody_deleted_is_claimed_by_nobody(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.pull()
    steps.client.execute("XDEL", STREAMS[1], id)

    assert steps.claim()[2] == []


def test_claims_of_a_queue_that_does_not_exist_find_nothing(steps: QueueSteps):
    assert steps.claim()[::2] == [b"0-0", []]


# After losses.


def test_what_a_front_runs_is_asserted_to_a_redis_that_forgot_it(steps: QueueSteps):
    id = steps.enqueue("c1")

    steps.run(queue_scripts.REASSERT, (STREAMS[1], NAMES.mark("c1")), (id, ANSWERED_BY, 1))

    assert steps.calls(OTHER) == ["c1"]  # the group's cursor was forgotten as well
    assert steps.start(id, "c1", OTHER) == b"other"


def test_an_assertion_leaves_it_noted_that_a_client_has_a_piece(steps: QueueSteps):
    id = steps.enqueue("c1", is_idempotent=1)
    steps.pull()
    steps.start(id, "c1")
    steps.chunk("c1")

    steps.run(queue_scripts.REASSERT, (STREAMS[1], NAMES.mark("c1")), (id, ANSWERED_BY, 1))

    assert steps.claim()[2] == []


def test_nothing_is_asserted_of_an_entry_that_is_gone(steps: QueueSteps):
    id = steps.enqueue("c1")
    steps.withdraw(id, "c1")

    assert steps.run(queue_scripts.REASSERT, (STREAMS[1], NAMES.mark("c1")), (id, ANSWERED_BY, 1)) == 0
    assert steps.client.execute("EXISTS", NAMES.mark("c1")) == 0


def test_missing_entries_are_told_behind_earlier_replies(steps: QueueSteps):
    ids = [steps.enqueue(f"c{number}") for number in range(3)]
    steps.pull()
    steps.finish(ids[0], "c0")
    steps.client.execute("XDEL", STREAMS[1], ids[1])

    arguments = [word for number in range(3) for word in (ids[number], f"c{number}")]
    steps.run(queue_scripts.CHECK, (NAMES.own_stream, *[STREAMS[1]] * 3), arguments)

    assert [(told["c"], told["k"]) for told in steps.told()] == [("c0", "end"), ("c0", "missing"), ("c1", "missing")]


def test_entries_of_one_front_are_found_page_by_page(steps: QueueSteps):
    ids = [steps.enqueue(f"c{number}") for number in range(3)]

    last, owned = steps.run(queue_scripts.OWNED, [STREAMS[1]], ("0-0", NAMES.front, 2))
    end, more = steps.run(queue_scripts.OWNED, [STREAMS[1]], (last, NAMES.front, 2))

    assert [id.decode() for id, _ in owned + more] == ids
    assert (last.decode(), end) == (ids[1], b"")
    assert steps.run(queue_scripts.OWNED, [STREAMS[1]], ("0-0", OTHER, 2))[1] == []
