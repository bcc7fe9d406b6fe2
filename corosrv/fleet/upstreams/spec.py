"""Reads what an operator says of an upstream: its URL, and how it is to be used; and keeps what is said at run time."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from operator import attrgetter
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

import msgspec

from corosrv.base.errors import Refused, SettingsError
from corosrv.base.run_dir import locked, process_name
from corosrv.fleet.upstreams.aborter import AbortKind

log = logging.getLogger("corosrv.upstreams")

DEFAULT_CONCURRENCY = 32  # of an upstream that does not tell how many it runs
MAX_CONCURRENCY = 65_536
MAX_WEIGHT = 1000.0
MAX_URL = 2048  # characters
MAX_HOST = 253
MAX_LABEL = 63  # of a host's name
Number = TypeVar("Number", int, float)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PASSWORD = re.compile(r"(?<=//).*@", re.DOTALL)
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?")
_NUMBERS = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")  # such a name is an address, or none
_OPTIONS = ("concurrency", "model", "weight", "api_key_env", "abort")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSpec:
    """Says where an upstream is, and how much it gets. Raises Refused, which names the field at fault."""

    url: str  # without a path's last slash; the same URL is the same upstream
    models: tuple[str, ...] = ()  # that it serves; empty: those that it lists itself
    concurrency: int | None = None  # calls that it runs at once; None: as many as it says, or DEFAULT_CONCURRENCY
    weight: float = 1.0  # its share of the calls, beside those of others
    api_key_env: str = ""  # the environment variable that holds the key to send; empty: no key of its own
    labels: Mapping[str, str] = field(default_factory=dict)
    abort: AbortKind = AbortKind.AUTO  # how it is told that a request is of no use any more

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _normal_url(self.url))
        if self.concurrency is not None and not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise Refused(f"concurrency must be from 1 to {MAX_CONCURRENCY}, not {self.concurrency}", "concurrency")
        if not 0 < self.weight <= MAX_WEIGHT:
            raise Refused(f"weight must be above 0 and at most {MAX_WEIGHT:g}, not {self.weight:g}", "weight")
        if self.api_key_env and not _VARIABLE.fullmatch(self.api_key_env):
            raise Refused("api_key_env must be the name of an environment variable", "api_key_env")
        if not all(self.models):
            raise Refused("model must not be empty", "model")


def parse(text: str) -> UpstreamSpec:
    """Reads an upstream as the command line has it: `http://a:8080?concurrency=16&model=small&weight=2`.

    Raises Refused, which says what is wrong.
    """
    url, _, query = text.strip().partition("?")
    options: dict[str, str] = {}
    models: list[str] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise Refused(f"{name[:60]!r} is no option of an upstream: those are {', '.join(_OPTIONS)}", "url")
        if name == "model":
            models.append(value)
        elif name in options:
            raise Refused(f"{name} is given twice", name)
        else:
            options[name] = value
    return UpstreamSpec(
        url=url,
        models=tuple(models),
        concurrency=_number("concurrency", options["concurrency"], int) if "concurrency" in options else None,
        weight=_number("weight", options.get("weight", "1"), float),
        api_key_env=options.get("api_key_env", ""),
        abort=abort_kind(options.get("abort", AbortKind.AUTO.value)),
    )


def abort_kind(text: str) -> AbortKind:
    """Returns the kind of this name. Raises Refused."""
    try:
        return AbortKind(text)
    except ValueError:
        names = ", ".join(kind.value for kind in AbortKind)
        raise Refused(f"abort must be one of {names}, not {text[:60]!r}", "abort") from None


def _number(name: str, text: str, kind: Callable[[str], Number]) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise Refused(f"{name} must be a number, not {text[:60]!r}", name) from None


def _normal_url(text: str) -> str:
    """Returns the URL by which an upstream is known."""
    if len(text) > MAX_URL:
        raise Refused(f"the URL has {len(text)} characters; at most {MAX_URL} are taken", "url")
    if not text.isprintable() or " " in text:
        raise Refused("the URL holds a space or a control character", "url")
    try:
        parts = urlsplit(text)
        name, scheme = parts.hostname or "", parts.scheme.lower()
    except ValueError:  # half a bracket
        name = scheme = ""
    if scheme not in ("http", "https") or not name:
        raise Refused(f"{_PASSWORD.sub('', text)[:200]!r} is no http or https URL", "url")
    if parts.username is not None or parts.password is not None:
        raise Refused("the URL must not hold a password: name a variable by api_key_env", "url")
    if parts.query or parts.fragment:
        raise Refused("the URL must end before its query", "url")
    if not parts.path.isascii():
        raise Refused("the URL's path must be ASCII: write other characters as %XX", "url")
    host, port = _host(name), _port(parts)
    place = f"[{host}]" if ":" in host else host
    if port not in (None, 80 if scheme == "http" else 443):
        place = f"{place}:{port}"
    return urlunsplit((scheme, place, parts.path.rstrip("/"), "", ""))


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise Refused("the URL's port must be a number from 1 to 65535", "url")
    return port


def _host(name: str) -> str:
    """Returns an address, or a host's name as DNS has it: in IDNA where it is not ASCII."""
    if ":" in name or _NUMBERS.fullmatch(name):
        try:
            return str(ip_address(name))
        except ValueError:
            raise Refused(f"the URL's host {name[:60]!r} is no IP address", "url") from None
    try:
        host = name if name.isascii() else name[:MAX_HOST].encode("idna").decode("ascii")
    except UnicodeError:
        raise Refused(f"the URL's host {name[:60]!r} cannot be written in IDNA", "url") from None
    labels = host.removesuffix(".").split(".")
    if max(len(host), len(name)) > MAX_HOST or max(map(len, labels)) > MAX_LABEL:
        words = f"may have {MAX_HOST} characters, and {MAX_LABEL} between two dots"
        raise Refused(f"the URL's host {name[:60]!r} is too long: it {words}", "url")
    if not all(map(_LABEL.fullmatch, labels)):
        raise Refused(f"the URL's host {name[:60]!r} is no name of a host", "url")
    return host


def parse_all(urls: Iterable[str]) -> list[UpstreamSpec]:
    """Parses the upstreams of the start. Raises SettingsError, which names the one at fault."""
    specs = []
    for number, url in enumerate(urls, 1):
        try:
            specs.append(parse(url))
        except Refused as error:  # without the URL itself, which may hold a password
            raise SettingsError(f"COROSRV_UPSTREAM: upstream number {number}: {error}") from None
    return specs


MAX_REMOVED = 1000  # URLs of removed upstreams that a file keeps
_SUFFIX = ".upstreams"


class UpstreamChange(msgspec.Struct, frozen=True):
    """Says what an operator has done last with the upstream of a URL."""

    number: int  # of the change, among those of the server
    url: str
    spec: UpstreamSpec | None  # as it was added; None: it was removed
    timeout: float  # seconds that the calls of one that was there may go on; 0: none


class ChangesFile:
    """A file with the changes of a server's upstreams since its start, which all of its processes read and write.

    A process that takes another one's place learns from it what that one knew. Methods may block for a moment.
    """

    def __init__(self, folder: str, server: int, number: int = 0, predecessor: int | None = None) -> None:
        """`folder`: the run directory, which is there. `server`: the process that is the parent of all others.

        `number`: of the upstreams, where one process has several times some. `predecessor`: the parent of the
        processes of the server that this one follows. Files of servers that have ended are removed. Raises OSError.
        """
        self._folder = folder
        self._number = number
        self._path = self._path_of(server)
        self._n_read = 0
        self._seen: tuple[int, int] | None = None  # the file as it was read last
        with locked(folder):
            for path in Path(folder).glob(f"*{_SUFFIX}"):
                if not _is_of_living(path):
                    path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # that one has changed nothing, or has ended
                if predecessor is not None and not self._path.exists():
                    self._write(self._read(self._path_of(predecessor)))

    def _path_of(self, server: int) -> Path:
        return Path(self._folder) / f"{process_name(server)}-{self._number}{_SUFFIX}"

    def look(self) -> list[UpstreamChange]:
        """Returns the changes that were not returned or made here yet, the first one first."""
        try:
            status = self._path.stat()
            if (seen := (status.st_ino, status.st_mtime_ns)) == self._seen:
                return []
            changes = self._read(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            log.error("changes of upstreams cannot be read: %s", error)
            return []
        self._seen = seen
        return self._unread(changes)

    def _unread(self, changes: dict[str, UpstreamChange]) -> list[UpstreamChange]:
        new = sorted((one for one in changes.values() if one.number > self._n_read), key=attrgetter("number"))
        self._n_read = max([self._n_read, *(one.number for one in new)])
        return new

    @contextlib.contextmanager
    def changing(self) -> Iterator[Callable[[str, UpstreamSpec | None, float], None]]:
        """Yields what writes a change down, while no other process changes anything: look() before, to know all."""
        with locked(self._folder):
            yield self._note

    def _note(self, url: str, spec: UpstreamSpec | None, timeout: float) -> None:
        try:
            changes = self._read(self._path) if self._path.exists() else {}
            number = max((one.number for one in changes.values()), default=0) + 1
            changes.pop(url, None)
            changes[url] = UpstreamChange(number, url, spec, timeout)
            self._n_read = number
            removed = [one.url for one in changes.values() if one.spec is None]
            for forgotten in removed[:-MAX_REMOVED]:
                del changes[forgotten]
            self._write(changes)
        except OSError as error:
            log.error("a change of upstreams cannot be kept for other worker processes: %s", error)

    def _read(self, path: Path) -> dict[str, UpstreamChange]:
        try:
            changes = msgspec.json.decode(path.read_bytes(), type=list[UpstreamChange])
        except msgspec.MsgspecError as error:
            log.error("%s holds no changes of upstreams, and is not used: %s", path, error)
            return {}
        return {one.url: one for one in changes}

    def _write(self, changes: dict[str, UpstreamChange]) -> None:
        written = self._path.with_suffix(f".{os.getpid()}{_SUFFIX}")
        written.write_bytes(msgspec.json.encode(list(changes.values())))
        written.chmod(0o600)
        written.rename(self._path)


def _is_of_living(path: Path) -> bool:
    pid, _, start = path.stem.rpartition("-")[0].partition("-")
    try:
        return process_name(int(pid)) == f"{pid}-{start}"
    except (OSError, ValueError):
        return False
