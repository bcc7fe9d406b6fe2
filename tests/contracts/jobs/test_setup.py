from corosrv.contracts.jobs.setup import MAX_LOGS, Setup


def test_a_setup_keeps_what_was_printed_and_when_it_ended() -> None:
    setup = Setup()
    setup.start()
    setup.add_logs("one\n")
    setup.add_logs("two\n")
    setup.succeed()

    assert (setup.status, setup.logs) == ("succeeded", "one\ntwo\n")
    assert setup.started_at is not None
    assert setup.completed_at is not None
    assert setup.started_at <= setup.completed_at


def test_the_error_of_a_failed_setup_ends_its_logs_on_a_line_of_its_own() -> None:
    setup = Setup()
    setup.add_logs("half a line")

    setup.fail("ValueError: no")

    assert (setup.status, setup.logs) == ("failed", "half a line\nValueError: no\n")


def test_an_error_that_was_printed_is_not_repeated() -> None:
    setup = Setup()
    setup.add_logs("Traceback\nValueError: no\n")

    setup.fail("ValueError: no")

    assert setup.logs == "Traceback\nValueError: no\n"


def test_logs_are_cut_at_the_limit_and_say_so() -> None:
    setup = Setup()

    for _ in range(6):
        setup.add_logs("x" * (1 << 20))

    assert setup.logs.startswith("x" * MAX_LOGS + "\n")
    assert setup.logs.count("TRUNCATED") == 1
    assert len(setup.logs) < MAX_LOGS + 100


def test_the_error_is_kept_also_when_the_logs_are_full() -> None:
    setup = Setup()
    setup.add_logs("x" * (MAX_LOGS + 1))

    setup.fail("ValueError: no")

    assert setup.logs.endswith("ValueError: no\n")
