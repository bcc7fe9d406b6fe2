"""Accounts of API keys: what is counted, what is refused, and when there is more."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event

from corosrv.base.errors import KeyNotCounted, LimitReached, SettingsError, Unauthorized
from corosrv.contracts.jobs import Chunk, Finish, Terms
from corosrv.contracts.settings import KeyEntry, add_key, read_keys, remove_key
from corosrv.web.accounts import Accounts, UsageCollector
from corosrv.web.key_account import UNLIMITED_ANSWER, Clocks, KeyAccount, UsageCounts
from corosrv.web.keys import digest
from corosrv.web.rate_limits import duration

NOON = 1_000_000 * 86_400 + 43_200.0


def n_tokens(counts: UsageCounts) -> int:
    return counts.prompt_tokens + counts.generated_tokens


@dataclass
class Time:
    """Two clocks that a test sets."""

    now: float = 1000.0
    wall: float = NOON

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: self.now, lambda: self.wall)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def account(time: Time) -> Callable[..., KeyAccount]:
    return lambda **limits: KeyAccount(KeyEntry(name="alice", hash="0" * 64, **limits), time.clocks)


def end(n_prompt: int, index: int = 0, finish: Finish = Finish.STOP, prompt_ms: float = 1.0, **more: Any) -> Chunk:
    return Chunk(index, "", 0, finish, prompt_tokens=n_prompt, prompt_ms=prompt_ms, compute_ms=prompt_ms, **more)


def run(account: KeyAccount, n_prompt: int, n_answer: int, max_tokens: int | None = 10) -> None:
    """Runs a job that ends well."""
    bill = account.open_bill(1, 1, max_tokens)
    try:
        bill.charge([n_prompt])
    except LimitReached:
        bill.drop()
        raise
    bill.add_end(end(n_prompt))
    bill.close(n_answer)


def left(account: KeyAccount, subject: str) -> str:
    return dict(account.headers())[f"x-ratelimit-remaining-{subject}"]


# Requests


def test_a_minute_s_requests_may_come_at_once_and_then_evenly(account, time: Time):
    alice = account(requests_per_minute=2)
    alice.admit("POST")
    alice.admit("POST")

    with pytest.raises(LimitReached, match="2 requests a minute") as refused:
        alice.admit("POST")

    assert refused.value.retry_after == 30
    time.pass_by(29.9)
    with pytest.raises(LimitReached):
        alice.admit("POST")
    time.pass_by(0.2)
    alice.admit("POST")


def test_a_bucket_holds_no_more_than_a_minute_s(account, time: Time):
    alice = account(requests_per_minute=2)
    time.pass_by(3600)

    alice.admit("POST")
    alice.admit("POST")
    with pytest.raises(LimitReached):
        alice.admit("POST")


def test_what_asks_for_no_work_is_not_counted(account):
    alice = account(requests_per_minute=1)

    for method in ("GET", "HEAD", "DELETE", "OPTIONS") * 3:
        alice.admit(method)

    assert (alice.total.requests, left(alice, "requests")) == (0, "1")


def test_a_clock_that_is_set_fills_no_bucket(account, time: Time):
    alice = account(requests_per_minute=1)
    alice.admit("POST")

    time.wall += 3600

    with pytest.raises(LimitReached):
        alice.admit("POST")


# Tokens


def test_tokens_are_charged_by_an_estimate_and_settled_by_what_was_computed(account):
    alice = account(tokens_per_minute=1000)
    bill = alice.open_bill(1, 1, 100)

    bill.charge([50])
    assert left(alice, "tokens") == "850"
    bill.add_end(end(50))
    bill.close(7)

    assert left(alice, "tokens") == "943"
    assert (alice.total.prompt_tokens, alice.total.generated_tokens) == (50, 7)


def test_an_answer_without_a_limit_is_estimated(account):
    alice = account(tokens_per_minute=1000)

    alice.open_bill(2, 2, None).charge([50, 50])

    assert left(alice, "tokens") == str(1000 - 50 - 2 * UNLIMITED_ANSWER)


def test_what_does_not_fit_is_told_when_it_will(account, time: Time):
    alice = account(tokens_per_minute=600)
    run(alice, 500, 50)

    with pytest.raises(LimitReached, match="may need 110: 100 of its prompt, 10 of its answer") as refused:
        run(alice, 100, 10)

    assert refused.value.retry_after == 6  # 60 are missing, and 10 come each second
    assert left(alice, "tokens") == "50"  # the refused one was charged for nothing
    time.pass_by(refused.value.retry_after)
    run(alice, 100, 10)


def test_a_full_bucket_takes_an_answer_that_may_be_longer_which_is_paid_for_later(account, time: Time):
    alice = account(tokens_per_minute=600)

    run(alice, 10, 1190, max_tokens=5000)

    with pytest.raises(LimitReached) as refused:
        alice.open_bill(1, 1, 1)
    assert refused.value.retry_after == 61  # 600 too many at 10 a second, and one more


def test_a_prompt_that_never_fits_is_refused_without_a_time(account):
    for limit, words in (("tokens_per_minute", "100 a minute"), ("tokens_per_day", "100 a day")):
        with pytest.raises(LimitReached, match=words) as refused:
            run(account(**{limit: 100}), 101, 0)

        assert (refused.value.retry_after, refused.value.should_retry) == (None, False)


def test_a_prompt_counts_once_however_many_answers_it_gets(account):
    alice = account()
    bill = alice.open_bill(4, 2, 10)

    bill.charge([50, 50, 70, 70])
    for index, n_prompt in enumerate((50, 50, 70, 70)):
        bill.add_end(end(n_prompt, index))
    bill.close(40)

    assert (alice.total.prompt_tokens, alice.total.generated_tokens, alice.total.compute_ms) == (120, 40, 4.0)


STOPPED = [
    ("while it ran", end(50, finish=Finish.CANCELLED), 3, 53),
    ("before it began", end(50, finish=Finish.CANCELLED, prompt_ms=0.0), 0, 0),
    ("by an error", end(50, finish=Finish.ERROR), 2, 52),
    ("and nobody read its end", None, 3, 53),
]


@pytest.mark.parametrize(
    ("last", "n_answer", "n_counted"), [row[1:] for row in STOPPED], ids=[row[0] for row in STOPPED]
)
def test_a_job_that_was_stopped_counts_as_far_as_is_known_to_be_computed(
    account, last: Chunk | None, n_answer: int, n_counted: int
):
    alice = account(tokens_per_minute=1000, tokens_per_day=1000)
    bill = alice.open_bill(1, 1, 100)
    bill.charge([50])

    if last is not None:
        bill.add_end(last)
    bill.close(n_answer)

    assert n_tokens(alice.total) == n_counted
    assert left(alice, "tokens") == str(1000 - n_counted)


def test_a_bill_is_settled_once(account):
    alice = account(streams=1)
    bill = alice.open_bill(1, 1, 1)

    for _ in range(3):
        bill.close(5)

    alice.open_bill(1, 1, 1)
    assert alice.total.generated_tokens == 5
    with pytest.raises(LimitReached):
        alice.open_bill(1, 1, 1)


def test_a_job_that_was_never_queued_costs_nothing(account):
    alice = account(tokens_per_minute=100, streams=1)
    bill = alice.open_bill(1, 1, 10)
    bill.charge([50])

    bill.drop()

    assert (left(alice, "tokens"), n_tokens(alice.total)) == ("100", 0)
    alice.open_bill(1, 1, 10)


def test_as_many_answers_are_made_at_once_as_a_key_may_have(account):
    alice = account(streams=2)
    first = alice.open_bill(1, 1, 1)
    alice.open_bill(1, 1, 1)

    with pytest.raises(LimitReached, match="2 answers made at once"):
        alice.open_bill(1, 1, 1)

    first.close(0)
    alice.open_bill(1, 1, 1)


# The day


def test_a_day_s_tokens_are_there_again_at_midnight_in_utc(account, time: Time):
    alice = account(tokens_per_day=100)
    run(alice, 90, 10)

    with pytest.raises(LimitReached, match="100 tokens a day, and has 0 left") as refused:
        run(alice, 1, 1)

    assert refused.value.retry_after == 43_200
    time.wall += 43_199
    with pytest.raises(LimitReached):
        run(alice, 1, 1)
    time.wall += 1
    run(alice, 1, 1)
    assert (n_tokens(alice.today), n_tokens(alice.total)) == (2, 102)


def test_a_job_over_midnight_counts_for_the_day_on_which_it_ends(account, time: Time):
    alice = account(tokens_per_day=100)
    bill = alice.open_bill(1, 1, 40)
    bill.charge([50])

    time.wall += 50_000
    bill.add_end(end(50))
    bill.close(30)

    assert n_tokens(alice.today) == 80
    assert left(alice, "tokens") == "20"


def test_a_day_that_a_wrong_clock_has_begun_does_not_last(account, time: Time):
    alice = account(tokens_per_day=100)
    time.wall += 30 * 86_400
    run(alice, 90, 10)

    time.wall -= 30 * 86_400

    run(alice, 90, 10)


# What is told


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0121, "13ms"), (1, "1s"), (8.64, "8.64s"), (360, "6m0s"), (61.5, "1m1.5s"), (5400, "1h30m0s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str):
    assert duration(seconds) == text


def test_headers_tell_what_is_left_and_when_all_is_there_again(account, time: Time):
    alice = account(requests_per_minute=60, tokens_per_minute=600)
    alice.admit("POST")
    run(alice, 60, 0)

    assert dict(alice.headers()) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "540",
        "x-ratelimit-reset-tokens": "6s",
    }
    assert account(tokens_per_day=5).headers()[0] == ("x-ratelimit-limit-tokens", "5")
    assert account(streams=5).headers() == []


# The file


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "keys.toml")


def test_plain_keys_have_names_and_no_limits(time: Time):
    accounts = Accounts(("one", "two", "one"), clocks=time.clocks)

    caller, account = accounts.find(b"two")

    assert account is not None
    assert (account.entry.name, account.entry.has_limits, len(caller)) == ("key-2", False, 64)
    assert accounts.find(b"three")[1] is None


def test_a_key_is_known_once_it_was_added_and_refused_once_it_was_removed(path: str):
    add_key(path, "alice", {})
    accounts = Accounts((), path)

    key = add_key(path, "bob", {"streams": 1}).encode()
    assert accounts.has_limits(digest(key).hex())
    caller, account = accounts.find(key)
    assert account is accounts.account_of(caller) is not None
    remove_key(path, "bob")

    with pytest.raises(Unauthorized):
        accounts.account_of(caller)
    assert accounts.find(key)[1] is None


def test_a_request_that_comes_while_the_file_is_read_waits_for_it_and_one_that_is_given_up_loses_no_key(
    path: str, monkeypatch: pytest.MonkeyPatch
):
    add_key(path, "alice", {})
    accounts = Accounts((), path)
    may_read = Event()

    def read(path: str) -> tuple[KeyEntry, ...]:
        entries = read_keys(path)
        assert may_read.wait(10)
        return entries

    monkeypatch.setattr("corosrv.web.accounts._PATIENCE", 30)
    monkeypatch.setattr("corosrv.web.accounts.read_keys", read)
    monkeypatch.setattr("corosrv.web.accounts.call_in_thread", lambda function, path: function(path))
    bob = add_key(path, "bob", {}).encode()
    first = gevent.spawn(accounts.find, bob)
    gevent.idle()
    carol = add_key(path, "carol", {}).encode()  # which the reading that has begun does not know
    others = [gevent.spawn(accounts.find, key) for key in (bob, carol)]
    gevent.idle()
    first.kill()

    assert not any(other.ready() for other in others)
    may_read.set()
    found = [other.get(timeout=10)[1] for other in others]

    assert [account and account.entry.name for account in found] == ["bob", "carol"]


def test_new_limits_leave_what_was_used(path: str, time: Time):
    key = add_key(path, "alice", {"requests_per_minute": 10}).encode()
    accounts = Accounts((), path, clocks=time.clocks)
    account = accounts.find(key)[1]
    assert account is not None
    for _ in range(4):
        account.admit("POST")

    file = Path(path)
    file.write_text(file.read_text().replace("= 10", "= 5"))

    assert accounts.find(key)[1] is account
    assert left(account, "requests") == "1"
    assert account.total.requests == 4


SPOILS: dict[str, Callable[[Path], object]] = {
    "deleted": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "broken": lambda file: file.write_text("[[keys]"),
    "world-readable": lambda file: file.chmod(0o644),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=list(SPOILS))
def test_a_file_that_cannot_be_read_again_changes_nothing_and_is_told_once(
    path: str, time: Time, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object]
):
    key = add_key(path, "alice", {}).encode()
    accounts = Accounts((), path, clocks=time.clocks)
    spoil(Path(path))

    with caplog.at_level(logging.INFO, "corosrv.http"):
        for _ in range(5):
            assert accounts.find(key)[1] is not None

    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "the API keys stay as they were" in caplog.text


def test_a_file_that_is_mended_is_read(path: str, time: Time):
    add_key(path, "alice", {})
    accounts = Accounts((), path, clocks=time.clocks)
    os.unlink(path)
    assert accounts.find(b"none")[1] is None

    key = add_key(path, "alice", {}).encode()

    assert accounts.find(key)[1] is not None


def test_a_key_that_is_a_plain_one_too_is_refused(path: str):
    key = add_key(path, "alice", {})
    with pytest.raises(SettingsError, match="'alice' is one of --api-key"):
        Accounts((key,), path)
    add_key(path, "key-1", {})
    with pytest.raises(SettingsError, match="'key-1'"):
        Accounts(("other",), path)


def test_a_reload_that_the_server_cannot_serve_changes_nothing(path: str, time: Time):
    def check(entries: Any) -> None:
        if any(entry.streams for entry in entries):
            raise SettingsError("no streams")

    first = add_key(path, "alice", {}).encode()
    accounts = Accounts((), path, check, time.clocks)
    second = add_key(path, "bob", {"streams": 1}).encode()

    assert accounts.find(second)[1] is None
    assert accounts.find(first)[1] is not None


def test_a_key_expires(account, time: Time):
    alice = account(expires=NOON + 10)
    assert not alice.is_expired
    time.wall += 10
    assert alice.is_expired


def test_a_key_may_use_the_models_that_it_names_by_any_of_their_names(account):
    assert account().may_use(("any",))
    assert account(models=("small",)).may_use(("big", "small"))
    assert not account(models=("small",)).may_use(("big", "medium"))


# Metrics


def samples(accounts: Accounts, name: str) -> dict[str, float]:
    return {
        sample.labels["key"]: sample.value
        for metric in UsageCollector(accounts).collect()
        for sample in metric.samples
        if sample.name == name
    }


def test_metrics_name_the_keys_of_the_file_that_were_used(path: str, time: Time):
    key = add_key(path, "alice", {}).encode()
    add_key(path, "bob", {})
    accounts = Accounts(("plain",), path, clocks=time.clocks)
    for one in (key, b"plain"):
        account = accounts.find(one)[1]
        assert account is not None
        account.admit("POST")
        run(account, 5, 3)

    assert samples(accounts, "corosrv_key_requests_total") == {"alice": 1.0}
    assert samples(accounts, "corosrv_key_generated_tokens_total") == {"alice": 3.0}


def test_metrics_of_many_keys_are_bounded_and_never_fall(tmp_path: Path, time: Time):
    file = tmp_path / "keys.toml"
    file.write_text("".join(f'[[keys]]\nname = "key {n}"\nhash = "{n:064x}"\n' for n in range(1100)))
    file.chmod(0o600)
    accounts = Accounts((), str(file), clocks=time.clocks)
    every = list(accounts.all())
    for account in every[100:]:
        account.admit("POST")
    before = samples(accounts, "corosrv_key_requests_total")
    for account in every[:100]:
        account.admit("POST")

    after = samples(accounts, "corosrv_key_requests_total")

    assert len(before) == 1000
    assert after == before | {"": 100.0}


def test_terms_have_what_the_key_adds(account):
    alice = account(tier=3, weight=2.0)

    terms = alice.terms(Terms(caller="c"))

    assert (terms.caller, terms.tier, terms.weight, terms.account) == ("c", 3, 2.0, alice)
    assert replace(terms, account=None, tier=0, weight=1.0) == Terms(caller="c")


# Requests that a peer passes on


def test_a_request_that_a_peer_passes_on_has_the_terms_of_its_key_here(path: str, time: Time):
    key = add_key(path, "alice", {"tier": 2, "weight": 3, "streams": 1})
    accounts = Accounts((), path, clocks=time.clocks)

    known = accounts.passed_on(digest(key.encode()).hex(), counts_answers=True)
    unknown = accounts.passed_on("0" * 64, counts_answers=False)

    assert known is not None
    assert unknown is not None
    assert (known.terms(Terms()).tier, known.terms(Terms()).weight) == (2, 3.0)
    assert (unknown.terms(Terms()).tier, unknown.entry.has_limits) == (
        5,
        False,
    )  # none goes before the keys of the file
    assert accounts.passed_on("", counts_answers=False) is None
    assert Accounts().passed_on("0" * 64, counts_answers=False) is None


def test_a_request_that_a_peer_passes_on_to_be_counted_is_refused_where_nobody_could(path: str, time: Time):
    key = add_key(path, "alice", {"streams": 1})
    accounts = Accounts((), path, clocks=time.clocks)
    caller = digest(key.encode()).hex()
    remove_key(path, "alice")

    for refusing in (accounts, Accounts()):
        with pytest.raises(KeyNotCounted):
            refusing.passed_on(caller, counts_answers=True)
