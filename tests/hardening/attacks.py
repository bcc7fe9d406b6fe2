"""Requests that no decent client sends, and what may come back: tables, and one way to run a line of them.

`python -m tests.hardening.attacks PORT` runs all of them against whatever serves there.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.serve.wire import CHAT, chat

CLOSED = 0  # no answer at all, only the end of the connection
SECRET = "tell-nobody"

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


@dataclass(frozen=True)
class Attack:
    """What is sent, piece by piece, and which statuses may answer it, in this order."""

    row: int
    name: str
    pieces: tuple[bytes, ...]
    statuses: frozenset[int]
    closes: bool = False  # the server has to end the connection by itself
    answers: int = 1  # as many as may come; a smuggled request would give one more
    within: float = 9.0  # seconds: less than the ten that a head has
    shuts: bool = False  # the client closes its sending side at the end

    def __str__(self) -> str:
        return f"h{self.row:03}-{self.name.replace(' ', '-')}"


@dataclass
class Outcome:
    """What came back."""

    data: bytes = b""
    is_closed: bool = False
    seconds: float = 0.0
    statuses: list[int] = field(default_factory=list)

    def fault(self, attack: Attack) -> str | None:
        """Why this is not what is required; None when it is."""
        if not self.statuses and CLOSED in attack.statuses and self.is_closed:
            return None
        if not self.statuses:
            return f"no answer within {attack.within:g} s, and {'closed' if self.is_closed else 'open'}"
        if self.statuses[0] not in attack.statuses:
            return f"{self.statuses[0]}, not one of {sorted(attack.statuses)}: {self.data[:300]!r}"
        if len(self.statuses) > attack.answers:
            return f"{len(self.statuses)} answers: {self.statuses}"
        if attack.closes and not self.is_closed:
            return "the connection stays open"
        if SECRET.encode() in self.data:
            return "it tells what it should not"
        return None


def run(attack: Attack, port: int) -> Outcome:
    """Sends it, and reads until the server closes, has answered, or the time is over."""
    outcome = Outcome()
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=attack.within) as sending:
        with suppress(OSError):  # it need not read what it refuses
            for piece in attack.pieces:
                sending.sendall(piece)
            if attack.shuts:
                sending.shutdown(socket.SHUT_WR)
        _read(sending, attack, outcome, began + attack.within)
    outcome.seconds = time.monotonic() - began
    return outcome


def _read(receiving: socket.socket, attack: Attack, outcome: Outcome, deadline: float) -> None:
    while (left := deadline - time.monotonic()) > 0:
        # An answer that may leave the connection open gets a moment for what must not follow it.
        receiving.settimeout(left if attack.closes or not outcome.statuses else min(left, 0.2))
        try:
            received = receiving.recv(65536)
        except TimeoutError:
            return
        except OSError:
            received = b""
        if not received:
            outcome.is_closed = True
            return
        outcome.data += received
        outcome.statuses = [int(status) for status in _STATUS.findall(outcome.data)]


def attack(
    row: int, name: str, *pieces: bytes, statuses: Iterable[int], **more: object
) -> Attack:  # fmt: skip
    return Attack(row, name, pieces, frozenset(statuses), **more)  # type: ignore[arg-type]


def _get(fields: bytes = b"", path: bytes = b"/health", version: bytes = b"1.1") -> bytes:
    return b"GET " + path + b" HTTP/" + version + b"\r\nHost: a\r\n" + fields + b"\r\n"


def _post(fields: bytes, body: bytes = b"") -> bytes:
    return b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n" + body


def _chunked(body: bytes) -> bytes:
    return _post(b"Transfer-Encoding: chunked\r\n", body)


GOOD = json.dumps(chat(max_tokens=1)).encode()
GOOD_CHUNK = b"%x\r\n%b\r\n" % (len(GOOD), GOOD)
SMUGGLED = b"GET /health HTTP/1.1\r\nHost: smuggled\r\n\r\n"
ENDS = (400, CLOSED)

NOT_HTTP = [
    attack(1, "garbage", b"\x00\xff\xfe garbage \r\n\r\n", statuses=ENDS, closes=True),
    attack(1, "garbage without a line", b"\x00\xff\xfe garbage", statuses=ENDS, closes=True),
    attack(1, "letters without a line", b"sometimes", statuses=(400, 408, CLOSED), closes=True),
    attack(1, "TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x42" * 200, statuses=ENDS, closes=True),
    attack(1, "HTTP2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", statuses=(400, 405, 505, CLOSED), closes=True),
    attack(1, "HTTP 0.9", b"GET /\r\n\r\n", statuses=ENDS, closes=True),
    attack(1, "HTTP 9.9", _get(version=b"9.9"), statuses=(400, 505), closes=True),
    attack(1, "HTTP 2.0", _get(version=b"2.0"), statuses=(400, 505), closes=True),
    attack(1, "no version", b"GET /health HTTP/\r\n\r\n", statuses=(400, 505), closes=True),
    attack(1, "SMTP", b"EHLO there\r\nMAIL FROM: a\r\n", statuses=ENDS, closes=True),
    attack(1, "only line ends", b"\r\n" * 20, statuses=ENDS, closes=True),
    attack(1, "bare LF", b"GET /health HTTP/1.1\nHost: a\n\n", statuses=ENDS, closes=True),
]

TOO_LARGE_HEADS = [
    attack(2, "long line", _get(path=b"/" + b"x" * 9000), statuses=(414,), closes=True),
    attack(2, "endless line", b"GET /" + b"x" * 200_000, statuses=(414, 431), closes=True),
    attack(2, "long field", _get(b"A: " + b"x" * 9000 + b"\r\n"), statuses=(431,), closes=True),
    attack(2, "long name", _get(b"x" * 9000 + b": A\r\n"), statuses=(431,), closes=True),
    attack(
        2, "many fields", _get(b"".join(b"X-%d: y\r\n" % i for i in range(200))), statuses=(431,), closes=True
    ),
    attack(
        2, "much in all", _get(b"".join(b"X-%d: %b\r\n" % (i, b"y" * 8000) for i in range(12))),
        statuses=(431,), closes=True,
    ),
    attack(2, "endless head", _get()[:-2] + b"A: " + b"x" * 2_000_000, statuses=(431,), closes=True),
    attack(2, "large key", _get(b"Authorization: Bearer " + b"k" * 102_400 + b"\r\n"), statuses=(431,), closes=True),
]  # fmt: skip

BAD_FIELDS = [
    attack(3, "NUL in a value", _get(b"X: a\x00b\r\n"), statuses=(400,), closes=True),
    attack(3, "NUL in a name", _get(b"X\x00: a\r\n"), statuses=(400,), closes=True),
    attack(3, "control byte", _get(b"X: a\x01b\r\n"), statuses=(400,), closes=True),
    attack(3, "DEL", _get(b"X: a\x7fb\r\n"), statuses=(400,), closes=True),
    attack(3, "nameless", _get(b": a\r\n"), statuses=(400,), closes=True),
    attack(3, "no colon", _get(b"nocolon\r\n"), statuses=(400,), closes=True),
    attack(3, "space before colon", _get(b"X : a\r\n"), statuses=(400,), closes=True),
    attack(3, "bare CR", _get(b"X: a\rb\r\n"), statuses=(400,), closes=True),
    attack(3, "bare LF in a field", _get(b"X: a\nY: b\r\n"), statuses=(400,), closes=True),
    attack(3, "folded", _get(b"X: a\r\n b\r\n"), statuses=(400,), closes=True),
    attack(3, "two hosts", _get(b"Host: b\r\n"), statuses=(400,), closes=True),
    attack(3, "control byte in the path", _get(path=b"/health\x01"), statuses=(400,), closes=True),
]

LENGTHS = [
    attack(4, name, _post(fields.encode("latin-1"), body + SMUGGLED), statuses=(400, 413, 501), closes=True)
    for name, fields, body in [
        ("length and chunked", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        ("chunked and length", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"),
        ("two lengths", "Content-Length: 5\r\nContent-Length: 6\r\n", b"xxxxx"),
        ("two equal lengths", "Content-Length: 5\r\nContent-Length: 5\r\n", b"xxxxx"),
        ("negative", "Content-Length: -5\r\n", b""),
        ("signed", "Content-Length: +5\r\n", b"xxxxx"),
        ("hex", "Content-Length: 0x5\r\n", b"xxxxx"),
        ("list", "Content-Length: 5, 5\r\n", b"xxxxx"),
        ("empty", "Content-Length: \r\n", b""),
        ("fraction", "Content-Length: 5.0\r\n", b"xxxxx"),
        ("digits of other scripts", "Content-Length: \xb2\r\n", b"xx"),
        ("of 40 digits", "Content-Length: " + "9" * 40 + "\r\n", b""),
        ("of 5000 digits", "Content-Length: " + "9" * 5000 + "\r\n", b""),
        ("unknown coding", "Transfer-Encoding: chonked\r\n", b"0\r\n\r\n"),
        ("chunked twice", "Transfer-Encoding: chunked, chunked\r\n", b"0\r\n\r\n"),
        ("chunked in two fields", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        ("compressed in chunks", "Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
        ("compressed, then chunked", "Transfer-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        ("chunked not last", "Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
        ("identity", "Transfer-Encoding: identity\r\n", b""),
        ("padded coding", "Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n"),
        ("coding with underscore", "Transfer_Encoding: chunked\r\nContent-Length: -1\r\n", b"0\r\n\r\n"),
        ("space before the colon", "Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"),
    ]
] + [
    attack(
        4, "chunked in HTTP 1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        statuses=(400, 501), closes=True,
    )
]  # fmt: skip

DECLARED = [
    attack(5, f"declares {length}", _post(b"Content-Length: %d\r\n" % length), statuses=(413,), closes=True)
    for length in (2**25 + 1, 2**31, 2**32 + 5, 10**12, 2**63, 2**64 + 10)
]

CUT_SHORT = [
    attack(7, "half of the length", _post(b"Content-Length: 500\r\n", GOOD), statuses=ENDS, closes=True, shuts=True),
    attack(7, "no chunk", _chunked(b""), statuses=ENDS, closes=True, shuts=True),
    attack(7, "no last chunk", _chunked(GOOD_CHUNK), statuses=ENDS, closes=True, shuts=True),
    attack(7, "half a last chunk", _chunked(GOOD_CHUNK + b"0\r\n"), statuses=ENDS, closes=True, shuts=True),
    attack(7, "half a chunk", _chunked(GOOD_CHUNK[:-8]), statuses=ENDS, closes=True, shuts=True),
    attack(7, "half a size", _chunked(GOOD_CHUNK + b"4"), statuses=ENDS, closes=True, shuts=True),
]

BAD_CHUNKS = [
    attack(8, name, _chunked(body + SMUGGLED), statuses=ENDS, closes=True)
    for name, body in [
        ("size of letters", b"xyz\r\nhello\r\n0\r\n\r\n"),
        ("negative size", b"-5\r\nhello\r\n0\r\n\r\n"),
        ("signed size", b"+5\r\nhello\r\n0\r\n\r\n"),
        ("0x size", b"0x5\r\nhello\r\n0\r\n\r\n"),
        ("empty size", b"\r\nhello\r\n0\r\n\r\n"),
        ("size with underscore", b"1_0\r\n" + b"h" * 16 + b"\r\n0\r\n\r\n"),
        ("spaced size", b" 5\r\nhello\r\n0\r\n\r\n"),
        ("no line end after a chunk", b"5\r\nhelloXX0\r\n\r\n"),
        ("longer than its size", b"5\r\nhello world\r\n0\r\n\r\n"),
        ("bare LF", b"5\nhello\n0\n\n"),
        ("bare CR in an extension", b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("extension of 100 KiB", b"5;a=" + b"b" * 102_400 + b"\r\nhello\r\n0\r\n\r\n"),
        ("bad trailer", GOOD_CHUNK + b"0\r\nno colon\r\n\r\n"),
        ("forbidden trailer", GOOD_CHUNK + b"0\r\nContent-Length: 5\r\n\r\n"),
    ]
] + [
    attack(8, "huge size", _chunked(b"f" * 16 + b"\r\nhello"), statuses=(400, 413, CLOSED), closes=True),
    # Read as the extension that it is: what stands behind it is no body that could be taken.
    attack(
        8, "extension of 5 KiB", _chunked(b"5;a=" + b"b" * 5120 + b"\r\nhello\r\n0\r\n\r\n"), statuses=ENDS
    ),
    attack(8, "size of 5000 digits", _chunked(b"f" * 5000 + b"\r\nhello"), statuses=(400, 413, CLOSED), closes=True),
    attack(
        8, "endless trailers", _chunked(b"0\r\n" + b"A: b\r\n" * 200_000), statuses=(400, 431, CLOSED), closes=True
    ),
]  # fmt: skip

ENCODED = [
    attack(
        9, coding, _post(b"Content-Encoding: %b\r\nContent-Length: %d\r\n" % (coding.encode(), len(GOOD)), GOOD),
        statuses=(415,),
    )
    for coding in ("gzip", "br", "deflate", "zstd", "gzip, gzip", "GZIP", "unheard-of")
]  # fmt: skip

EXPECTATIONS = [
    attack(
        12, "unknown expectation", _post(b"Expect: 200-ok\r\nContent-Length: %d\r\n" % len(GOOD), GOOD),
        statuses=(417,), closes=True,
    ),
    attack(
        12, "continue that is too large", _post(b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n"),
        statuses=(413,), closes=True,
    ),
    attack(
        12, "continue of a wrong type",
        _post(b"Expect: 100-continue\r\nContent-Encoding: gzip\r\nContent-Length: 10\r\n"),
        statuses=(415,), closes=True,
    ),
    attack(
        12, "continue to nowhere",
        b"POST /nowhere HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
        statuses=(404,), closes=True,
    ),
]  # fmt: skip


def _odd(method: str, path: str = "/health", *statuses: int, fields: str = "") -> Attack:
    data = f"{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n".encode("latin-1")
    return attack(13, f"{method} {path[:40]}".replace("/", "|"), data, statuses=statuses)


ODD = [
    _odd("TRACE", "/health", 400, 404, 405, 501, fields=f"X-Echo: {SECRET}\r\n"),
    _odd("CONNECT", "example.com:443", 400, 404, 405, 501),
    _odd("PROPFIND", "/", 400, 404, 405, 501),
    _odd("BREW", CHAT, 400, 404, 405, 501),
    _odd("PATCH", CHAT, 404, 405),
    _odd("get", "/health", 400, 405, 501),
    _odd("G" * 300, "/health", 400, 405, 501),
    _odd("GET", "http://example.com/health", 200, 400, 404),
    _odd("GET", "http://example.com/nowhere", 400, 404),
    _odd("GET", "//example.com/health", 200, 308, 400, 404),
    _odd("GET", "/../../../etc/passwd", 400, 404),
    _odd("GET", "/%2e%2e/%2e%2e/etc/passwd", 400, 404),
    _odd("GET", "/..%2f..%2fetc%2fpasswd", 400, 404),
    _odd("GET", "/v1/models/..%2f..%2f..%2fetc%2fpasswd", 400, 404),
    _odd("GET", "/health%00", 400, 404),
    _odd("GET", "/health%0d%0aX-Injected:%20yes", 400, 404),
    _odd("GET", "/%ff%fe", 400, 404),
    _odd("GET", "*", 400, 404),
    _odd("GET", "health", 400, 404),
    _odd("GET", "/health?" + "a=b&" * 500, 200, 400),
    _odd("GET", "/static/../app.py", 400, 404),
]


def _body(row: int, name: str, body: bytes, *statuses: int, fields: bytes = b"", path: str = CHAT) -> Attack:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n".encode()
    return attack(row, name, head + fields + b"\r\n" + body, statuses=statuses or (400,), within=10)


def _with(value: bytes) -> bytes:
    """A good body with one more field, which nobody knows."""
    return GOOD[:-1] + b', "unknown": ' + value + b"}"


_XML = b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>'

TYPES = [
    _body(14, "XML", _XML, 400, 415, fields=b"Content-Type: application/xml\r\n"),
    _body(14, "XML called JSON", _XML, 400, fields=b"Content-Type: application/json\r\n"),
    _body(14, "multipart", b"--a\r\n\r\nx", 400, 415, fields=b"Content-Type: multipart/form-data; boundary=a\r\n"),
    _body(14, "multipart without boundary", b"--\r\n", 400, 415, fields=b"Content-Type: multipart/form-data\r\n"),
    _body(14, "form", b"messages=hi&model=x", 400, 415, fields=b"Content-Type: application/x-www-form-urlencoded\r\n"),
    _body(14, "picture", b"\x89PNG\r\n", 400, 415, fields=b"Content-Type: image/png\r\n"),
    _body(14, "broken type", b"{", 400, 415, fields=b"Content-Type: ;;;=\r\n"),
]

NO_JSON = [
    _body(22, "empty", b""),
    _body(22, "spaces", b"   \r\n "),
    _body(22, "a word", b"hello"),
    _body(22, "a list", b"[]"),
    _body(22, "a string", b'"x"'),
    _body(22, "a number", b"5"),
    _body(22, "null", b"null"),
    _body(22, "half an object", GOOD[:-1]),
    _body(22, "trailing bytes", GOOD + b"x"),
    _body(22, "two objects", GOOD + GOOD),
    _body(22, "BOM", b"\xef\xbb\xbf" + GOOD, 200),
    _body(22, "two BOMs", 2 * b"\xef\xbb\xbf" + GOOD),
    _body(22, "UTF-16", GOOD.decode().encode("utf-16")),
    _body(22, "UTF-32", GOOD.decode().encode("utf-32-le")),
    _body(22, "single quotes", GOOD.replace(b'"', b"'")),
    _body(22, "trailing comma", GOOD[:-1] + b",}"),
    _body(22, "comment", b"/* x */" + GOOD),
]

TEXTS = [
    _body(23, "bad UTF-8", GOOD.replace(b"hi", b"h\xff")),
    _body(23, "cut UTF-8", GOOD.replace(b"hi", b"\xe2\x82")),
    _body(23, "overlong UTF-8", GOOD.replace(b"hi", b"\xc0\xaf")),
    _body(23, "surrogate in UTF-8", GOOD.replace(b"hi", b"\xed\xa0\x80")),
    _body(23, "bad UTF-8 in an unknown field", _with(b'"\xff"')),
    _body(23, "lone surrogate", GOOD.replace(b"hi", rb"\ud800")),
    _body(23, "surrogates the wrong way round", GOOD.replace(b"hi", rb"\udc00\ud800")),
    _body(23, "raw NUL", GOOD.replace(b"hi", b"h\x00i")),
    _body(23, "escaped NUL", GOOD.replace(b"hi", rb"h\u0000i"), 200),
    _body(23, "raw line end", GOOD.replace(b"hi", b"h\ni")),
]

NUMBERS = [
    _body(24, f"{where} {value[:12].decode()}", body)
    for value in (
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"9" * 5000,
        b"1." + b"0" * 5000,
        b"01",
        b"+1",
    )
    for where, body in (
        ("temperature", GOOD[:-1] + b', "temperature": ' + value + b"}"),
        ("unknown", _with(value)),
    )
]

DEEP = [
    _body(25, "lists in an unknown field", _with(b"[" * 200 + b"]" * 200)),
    _body(25, "objects in an unknown field", _with(b'{"a":' * 200 + b"1" + b"}" * 200)),
    _body(25, "a million lists", _with(b"[" * 1_000_000)),
    _body(25, "lists in messages", b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    _body(25, "128 levels", _with(b"[" * 127 + b"]" * 127), 200),
    _body(25, "brackets in a string", GOOD.replace(b"hi", b"[" * 300), 200),
]

MANY = [
    _body(26, "100000 keys", b"{" + b",".join(b'"k%d":1' % i for i in range(100_000)) + b"}"),
    _body(26, "one key 300000 times", b"{" + b",".join([b'"a":1'] * 300_000) + b"}"),
    _body(
        26, "100000 keys in an unknown field", _with(b"{" + b",".join(b'"k%d":1' % i for i in range(100_000)) + b"}")
    ),
    _body(26, "4000 keys", _with(b"{" + b",".join(b'"k%d":1' % i for i in range(4000)) + b"}"), 200),
    _body(26, "colons in a string", GOOD.replace(b"hi", b":" * 9000), 200, 400),
]


ALL = [
    *NOT_HTTP, *TOO_LARGE_HEADS, *BAD_FIELDS, *LENGTHS, *DECLARED, *CUT_SHORT, *BAD_CHUNKS, *ENCODED, *EXPECTATIONS,
    *ODD, *TYPES, *NO_JSON, *TEXTS, *NUMBERS, *DEEP, *MANY,
]  # fmt: skip


def main(port: int) -> None:
    n_good = 0
    for one in ALL:
        outcome = run(one, port)
        fault = outcome.fault(one)
        n_good += fault is None
        if fault is not None:
            print(f"{one}: {fault} ({outcome.seconds:.2f} s)")
    print(f"as required: {n_good} of {len(ALL)}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
