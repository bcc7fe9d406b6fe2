"""What tests of the worker's child ask a sync predictor to do."""

from __future__ import annotations

import _signal
import ctypes
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from corosrv.worker import BasePredictor, CancelationException, current_scope

release = threading.Event()
leftover_may_print = threading.Event()


class Predictor(BasePredictor):
    """`do` names a method below."""

    def setup(self) -> None:
        self.n_calls = 0

    def run(self, do: str, text: str = "", number: int = 0) -> Any:
        self.n_calls += 1
        return getattr(self, do)(text, number)

    def echo(self, text: str, number: int) -> str:
        return text

    def echo_late(self, text: str, number: int) -> str:
        for _ in range(number):
            time.sleep(0)  # gives the interpreter's lock away, as most predictions do
        return text

    def count(self, text: str, number: int) -> int:
        return self.n_calls

    def items(self, text: str, number: int) -> list[str]:
        return [text] * number

    def twin(self, text: str, number: int) -> tuple[str, str]:
        return (text, text)

    def yields(self, text: str, number: int) -> Iterator[str]:
        for at in range(number):
            yield f"{text}{at}"

    def yields_then_dies(self, text: str, number: int) -> Iterator[str]:
        yield text
        os._exit(3)

    def context(self, text: str, number: int) -> dict[str, str]:
        return {**self.scope.context, **current_scope().context}

    def fail_hard(self, text: str, number: int) -> None:
        raise ValueError(text * number + "\ud800")

    def surrogate(self, text: str, number: int) -> list[str]:
        return ["\ud800"] * number or "\ud800"  # type: ignore[return-value]

    def records_to_the_last(self, text: str, number: int) -> None:
        scope = current_scope()

        def work() -> None:
            for at in range(number):
                scope.record_metric("n", at)

        for _ in range(3):
            threading.Thread(target=work).start()
        time.sleep(0.001)

    def fail(self, text: str, number: int) -> None:
        print("before")
        raise ValueError(text)

    def leave(self, text: str, number: int) -> None:
        sys.exit(number)

    def cancel_itself(self, text: str, number: int) -> None:
        raise CancelationException("cancelled by myself")

    # Prints.

    def both(self, text: str, number: int) -> None:
        print("out")
        print("err", file=sys.stderr)
        sys.stdout.buffer.write(b"bytes\n")
        print("end", end="")

    def unterminated(self, text: str, number: int) -> None:
        print(text, end="")

    def child(self, text: str, number: int) -> None:
        subprocess.run(["sh", "-c", "echo from the child; echo its errors >&2; printf unterminated"], check=True)

    def c_code(self, text: str, number: int) -> None:
        libc = ctypes.CDLL(None)
        libc.printf(b"from C\n")
        libc.printf(b"held back")

    def descriptor(self, text: str, number: int) -> None:
        os.write(1, bytes.fromhex(text))

    def forked(self, text: str, number: int) -> None:
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_print_and_record, args=(text,))
        child.start()
        child.join()

    def fork_returns(self, text: str, number: int) -> int:
        return _waited_for(os.fork())

    def fork_exits(self, text: str, number: int) -> int:
        if (pid := os.fork()) == 0:
            sys.exit(number)
        return _waited_for(pid)

    def fork_fails(self, text: str, number: int) -> int:
        if (pid := os.fork()) == 0:
            raise ValueError(text)
        return _waited_for(pid)

    def fork_yields(self, text: str, number: int) -> Iterator[int]:
        pid = os.fork()
        yield 0
        if pid == 0:
            print("a copy went on")
        yield _waited_for(pid)

    def threads(self, text: str, number: int) -> None:
        def work() -> None:
            print(text)
            self.record_metric("seen", text)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def leftover(self, text: str, number: int) -> None:
        def work() -> None:
            leftover_may_print.wait(20)
            print(text)
            current_scope().record_metric("late", 1)

        threading.Thread(target=work).start()

    def release_leftover(self, text: str, number: int) -> None:
        leftover_may_print.set()
        for thread in threading.enumerate():
            if "work" in thread.name:
                thread.join(20)

    def long_line(self, text: str, number: int) -> None:
        sys.stdout.write(text * number)
        print("\nnext")

    def many_writes(self, text: str, number: int) -> None:
        for _ in range(number):
            sys.stdout.write(text)

    # Waits.

    def spin(self, text: str, number: int) -> None:
        print("spinning", flush=True)
        while True:
            pass

    def spin_and_print(self, text: str, number: int) -> None:
        while True:
            print("spinning")

    def wait_by(self, text: str, number: int) -> None:
        read_end, _ = os.pipe()
        waits = {
            "sleep": lambda: time.sleep(1000),
            "subprocess": lambda: subprocess.run(["sleep", "1000"], check=True),
            "event": lambda: threading.Event().wait(),
            "queue": lambda: queue.Queue().get(timeout=1000),
            "pipe": lambda: os.read(read_end, 1),
        }
        try:
            threading.Timer(0.05, print, ["waiting"]).start()  # when this thread does
            waits[text]()
        finally:
            print("cleaned up")

    def reset_signals(self, text: str, number: int) -> None:
        if text == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            return
        reset = {"signal": signal.signal, "_signal": _signal.signal, "libc": ctypes.CDLL(None).signal}[text]
        for signal_number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            reset(signal_number, 0)  # SIG_DFL

    def reset_signals_and_spin(self, text: str, number: int) -> None:
        self.reset_signals(text, number)
        self.spin(text, number)

    def swallow(self, text: str, number: int) -> str:
        try:
            print("spinning", flush=True)
            while True:
                pass
        except CancelationException:
            print("swallowed")
        return text

    def clean_up(self, text: str, number: int) -> None:
        self.record_metric("before", 1)
        try:
            print("spinning", flush=True)
            while True:
                pass
        finally:
            print("cleaned up")
            self.record_metric("after", 1)

    def destructors(self, text: str, number: int) -> None:
        print("spinning", flush=True)
        while True:
            _Restless()

    def endless(self, text: str, number: int) -> Iterator[int]:
        at = 0
        try:
            while True:
                yield at
                at += 1
        except CancelationException:
            print("told at the yield")
            raise
        finally:
            print("closed")


def _waited_for(pid: int) -> int:
    """The exit code of a forked copy; 0 in the copy itself."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else 0


class _Restless:
    """Spends its time where exceptions are lost."""

    def __del__(self) -> None:
        for _ in range(20):
            pass


def _print_and_record(text: str) -> None:
    print(text, flush=True)
    current_scope().record_metric("forked", 1)
