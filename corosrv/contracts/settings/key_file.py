"""The file of API keys that have limits: read whole and checked, and changed one key at a time.

It is TOML with a table `[[keys]]` for each key. It has the SHA-256 of each key and not the key itself, so that whoever
sees the file has no key. A change replaces the file at once, under a lock of its folder: a reader sees the old file or
the new one.
"""

from __future__ import annotations

import contextlib
import datetime
import difflib
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings.sources import parse_toml

TIERS = 9  # the last one
DEFAULT_TIER = 5  # of a key that names none: there is room before it and behind it
_MOST_WEIGHT = 1000.0
_MOST = 2**53  # of a limit
_MOST_BYTES = 16 << 20  # of the file: some 50,000 keys
_MOST_NAME = 64  # characters
_NEW = 0o600
_FOR_OTHERS = 0o037  # the group may read, and nobody else anything
_PATIENCE = 10.0  # seconds for which a change waits for another one
_PAUSE = 0.02

_HASH = re.compile(r"[0-9a-f]{64}")
_TABLE = re.compile(r"\s*\[\[\s*keys\s*\]\]\s*(#.*)?")
KEY_LIMITS = ("streams", "requests_per_minute", "tokens_per_minute", "tokens_per_day")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One key of the file, and what it may do; None sets no limit."""

    name: str
    hash: str  # SHA-256 of the key, 64 lower-case hexadecimal digits
    models: tuple[str, ...] = ()  # that it may use; none named: all
    tier: int = DEFAULT_TIER  # 0 goes first, 9 last
    weight: float = 1.0  # of its share among the keys of its tier
    streams: int | None = None  # answers at once
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    expires: float | None = None  # Unix time from which on it is refused
    admin: bool = False  # sees the usage of all keys

    @property
    def has_limits(self) -> bool:
        """Tells whether something has to be counted for this key before it is served."""
        return self.requests_per_minute is not None or self.counts_answers

    @property
    def counts_answers(self) -> bool:
        """Tells whether it has limits that only whoever makes an answer can keep: of tokens, and of answers at once."""
        return (self.streams, self.tokens_per_minute, self.tokens_per_day) != (None, None, None)


_FIELDS = tuple(field.name for field in fields(KeyEntry))

# Of a file: when it was changed last, its size, its number, and who may read it.
Signature = tuple[int, int, int, int]

_last_read: tuple[str, str, tuple[KeyEntry, ...]] | None = None


def read_keys(path: str) -> tuple[KeyEntry, ...]:
    """Reads and checks the file; the same text as at the last call is not parsed again.

    Raises SettingsError, which names what is wrong and never a key. 10,000 keys take about a second.
    """
    global _last_read
    text = _read(path)
    if _last_read is not None and _last_read[:2] == (path, text):
        return _last_read[2]
    entries = parse_keys(text, path)
    _last_read = path, text, entries
    return entries


def signature_of(path: str) -> Signature | str:
    """Returns what changes when the file does, or in words why there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        return _words(error)
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def _words(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _read(path: str) -> str:
    """Returns the text, read after the file itself was checked: not the one that is there a moment later."""
    try:
        # A pipe in its place would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SettingsError(f"{path} is no file of keys: it is not a regular file")
            if excess := stat.S_IMODE(status.st_mode) & _FOR_OTHERS:
                raise SettingsError(
                    f"{path} has the mode {stat.S_IMODE(status.st_mode):04o}, of which {excess:04o} is too much: only "
                    f"its owner may write it, and only the owner and the group may read it (chmod 600 {path})"
                )
            if status.st_size > _MOST_BYTES:
                raise SettingsError(f"{path} is larger than the {_MOST_BYTES} bytes that a file of keys may have")
            return file.read(_MOST_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:  # of the path, and of bytes that are not UTF-8
        raise SettingsError(f"the file of keys {path} cannot be read: {_words(error)}") from None


def parse_keys(text: str, path: str) -> tuple[KeyEntry, ...]:
    """Reads the keys of the file's text; `path` is for errors. Raises SettingsError."""
    try:
        tables = parse_toml(text)
    except (ValueError, RecursionError) as error:
        words = f"the file of keys {path} is no TOML: {error}"
        if not any(mark in text for mark in "[="):
            words += "; a file with a key in each line is for --api-key-file"
        raise SettingsError(words) from None
    for name in tables:
        if name != "keys":
            raise SettingsError(f"{path} has '{_quotable(name)}', which is unknown: each key is a table [[keys]]")
    listed = tables.get("keys", [])
    if not isinstance(listed, list) or not all(isinstance(table, dict) for table in listed):
        raise SettingsError(f"{path}: 'keys' must be tables: each key is a table [[keys]]")
    entries = tuple(_entry(table, number, path) for number, table in enumerate(listed, 1))
    _check_once(entries, path)
    return entries


def _check_once(entries: tuple[KeyEntry, ...], path: str) -> None:
    names: set[str] = set()
    by_hash: dict[str, str] = {}
    for entry in entries:
        if entry.name in names:
            raise SettingsError(f"{path} has the name '{entry.name}' twice")
        names.add(entry.name)
        if (other := by_hash.setdefault(entry.hash, entry.name)) != entry.name:
            raise SettingsError(f"{path} has one key twice, as '{other}' and as '{entry.name}'")


def _entry(table: Mapping[str, Any], number: int, path: str) -> KeyEntry:
    name = table.get("name")
    where = f"{path}, key {number}" if not isinstance(name, str) else f"{path}, key '{_quotable(name)}'"
    for field in table:
        if field not in _FIELDS:
            nearest = difflib.get_close_matches(field, _FIELDS, n=1, cutoff=0.6)
            meant = f"did you mean '{nearest[0]}'?" if nearest else f"there are {', '.join(_FIELDS)}"
            raise SettingsError(f"{where}: '{_quotable(field)}' is unknown: {meant}")
    for field in ("name", "hash"):
        if field not in table:
            raise SettingsError(f"{where}: {field} is missing")
    values = {}
    for field, value in table.items():
        convert, words = _CHECKS[field]
        values[field] = convert(value)
        if values[field] is None:
            shown = value if type(value) is int else f"a {type(value).__name__}"
            raise SettingsError(f"{where}: {field} must be {words.format(shown=shown)}")
    return KeyEntry(**values)


def _quotable(text: str) -> str:
    """Returns a text of the file for an error, on one line."""
    short = text if len(text) <= _MOST_NAME else text[:_MOST_NAME] + "..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in short)


def is_name(text: str) -> bool:
    """Tells whether a key may have this name, which stands in logs, metrics and answers."""
    return (
        0 < len(text) <= _MOST_NAME
        and text.isprintable()
        and text == text.strip()
        and not set("\"'`\\").intersection(text)
    )


def _models(value: Any) -> tuple[str, ...] | None:
    is_list = isinstance(value, list) and value and all(isinstance(model, str) and model for model in value)
    return tuple(value) if is_list else None


def _expires(value: Any) -> float | None:
    if type(value) is datetime.date:
        value = datetime.datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime.datetime):
        return None
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.timezone.utc)
    try:
        return float(value.timestamp())
    except OverflowError:  # the first or last day, elsewhere
        return math.copysign(math.inf, value.year - 2000)


def _integer(least: int, most: int) -> Callable[[Any], int | None]:
    return lambda value: value if type(value) is int and least <= value <= most else None


# Of each field what returns its value as KeyEntry has it, None for one that it must not have, and what it must be.
_CHECKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "name": (
        lambda value: value if isinstance(value, str) and is_name(value) else None,
        f"1 to {_MOST_NAME} printable characters without quotes, backslashes, and spaces at an end",
    ),
    "hash": (  # it may be the key itself, which must not be in a log
        lambda value: value if isinstance(value, str) and _HASH.fullmatch(value) else None,
        "the SHA-256 of the key, 64 lower-case hexadecimal digits, and not the key: 'corosrv keys add' makes both",
    ),
    "models": (_models, "a list of models' names; leave it out to allow all"),
    "tier": (_integer(0, TIERS), f"an integer from 0, which goes first, to {TIERS}"),
    "weight": (  # a NaN is in no range
        lambda value: float(value) if type(value) in (int, float) and 0 < value <= _MOST_WEIGHT else None,
        f"a number above 0, at most {_MOST_WEIGHT:g}",
    ),
    "expires": (_expires, "a date or a time of TOML, as 2030-01-31 or 2030-01-31T12:00:00Z"),
    "admin": (lambda value: value if isinstance(value, bool) else None, "true or false"),
    **dict.fromkeys(
        KEY_LIMITS,
        (
            _integer(1, _MOST),
            "an integer from 1 on, not {shown}; leave it out to set no limit, and remove the key to let nothing "
            "through",
        ),
    ),
}


# Changes


def new_key() -> str:
    """Makes a key of 32 random bytes."""
    return f"sk-{secrets.token_urlsafe(32)}"


def add_key(path: str, name: str, options: Mapping[str, Any]) -> str:
    """Adds a key with these fields of KeyEntry, None ones left out, and returns it; only its hash is kept.

    Makes the file, for its owner alone, if there is none; else the rest of its text stays as it is. Waits for another
    change; raises SettingsError for what read_keys() would refuse, and changes nothing then.
    """
    key = new_key()
    values = {"name": name, "hash": hashlib.sha256(key.encode()).hexdigest(), **options}
    table = "[[keys]]\n" + "".join(
        f"{field} = {_toml(value)}\n" for field, value in values.items() if value is not None
    )
    _entry({field: _read_back(value) for field, value in values.items() if value is not None}, 1, path)
    with _locked(path) as target:
        text = _read(target) if os.path.lexists(target) else ""
        n_before = len(parse_keys(text, path))
        new_text = f"{text.rstrip()}\n\n{table}" if text.strip() else table
        try:
            is_sound = len(parse_keys(new_text, path)) == n_before + 1
        except SettingsError as error:
            if f"'{name}' twice" in str(error):
                raise
            is_sound = False
        if not is_sound:
            raise SettingsError(f"{path} cannot be added to: write each of its keys as a table [[keys]]")
        _replace(target, new_text)
    return key


def _read_back(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def remove_key(path: str, name: str) -> None:
    """Removes a key's table; comments and the other keys stay as they are. Waits for another change.

    Raises SettingsError where there is no such key, and for a table that is not written as add_key() writes it.
    """
    with _locked(path) as target:
        text = _read(target)
        entries = parse_keys(text, path)
        number = next((number for number, entry in enumerate(entries) if entry.name == name), None)
        if number is None:
            nearest = difflib.get_close_matches(name, [entry.name for entry in entries], n=1)
            meant = f"; did you mean '{nearest[0]}'?" if nearest else ""
            raise SettingsError(f"{path} has no key '{_quotable(name)}'{meant}")
        new_text = _without_table(text, number)
        try:
            is_sound = parse_keys(new_text, path) == (*entries[:number], *entries[number + 1 :])
        except SettingsError:
            is_sound = False
        if not is_sound:
            raise SettingsError(f"{path}: the key '{name}' is not written as a plain table [[keys]]; remove it by hand")
        _replace(target, new_text)


def _without_table(text: str, number: int) -> str:
    """Returns the text without the table of this number, up to the last line that says something."""
    lines = text.splitlines(keepends=True)
    begins = [place for place, line in enumerate(lines) if _TABLE.fullmatch(line)]
    if number >= len(begins):
        return text
    begin = begins[number]
    end = begins[number + 1] if number + 1 < len(begins) else len(lines)
    while end > begin + 1 and (not (line := lines[end - 1].strip()) or line.startswith("#")):
        end -= 1  # what stands before the next table belongs to it
    has_gap = end == len(lines) or not lines[end].strip()
    if has_gap and (begin == 0 or not lines[begin - 1].strip()):  # one of the empty lines around it goes as well
        begin, end = max(begin - 1, 0), end + (begin == 0)
    return "".join((*lines[:begin], *lines[end:]))


@contextlib.contextmanager
def _locked(path: str) -> Iterator[str]:
    """Holds the lock of the file's folder, and gives the file itself where `path` is a link to it.

    The lock is the folder's, because a change puts another file in the place of this one.
    """
    target = os.path.realpath(path)
    try:
        folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SettingsError(f"the folder of {path} cannot be opened: {_words(error)}") from None
    try:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise SettingsError(f"another change of {path} has not ended in {_PATIENCE:g} s") from None
                time.sleep(_PAUSE)
        yield target
    finally:
        os.close(folder)


def _replace(target: str, text: str) -> None:
    """Puts a new file in the place of the old one, with its mode and owner; a new one is for its owner alone."""
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".keys-", dir=os.path.dirname(target))
        with open(descriptor, "wb") as file:
            if os.path.lexists(target):
                old = os.stat(target)
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
            else:
                os.fchmod(file.fileno(), _NEW)
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise SettingsError(f"{target} cannot be written: {_words(error)}") from None
