"""The file of API keys: what is refused in words, and what a change leaves as it is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from corosrv.base.errors import SettingsError
from corosrv.cli import main
from corosrv.contracts import settings
from corosrv.contracts.settings import KeyEntry, add_key, read_keys, remove_key

HASH, OTHER = "0" * 64, "1" * 64
ALICE = f'[[keys]]\nname = "alice"\nhash = "{HASH}"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_key_has_what_its_table_says(path: Path):
    text = ALICE + (
        'models = ["small", "large"]\ntier = 2\nweight = 3\nstreams = 4\nrequests_per_minute = 60\n'
        "tokens_per_minute = 1000\ntokens_per_day = 50_000\nexpires = 2030-01-31\nadmin = true\n"
    )

    (entry,) = read_keys(write(path, text))

    assert entry == KeyEntry(
        name="alice",
        hash=HASH,
        models=("small", "large"),
        tier=2,
        weight=3.0,
        streams=4,
        requests_per_minute=60,
        tokens_per_minute=1000,
        tokens_per_day=50_000,
        expires=1_896_048_000.0,
        admin=True,
    )


def test_a_key_that_says_nothing_has_no_limits(path: Path):
    (entry,) = read_keys(write(path, ALICE))

    assert (entry.tier, entry.weight, entry.models, entry.has_limits) == (5, 1.0, (), False)


@pytest.mark.parametrize("name", ["streams", "requests_per_minute", "tokens_per_minute", "tokens_per_day"])
def test_any_limit_makes_a_key_one_with_limits(path: Path, name: str):
    (entry,) = read_keys(write(path, f"{ALICE}{name} = 1\n"))

    assert entry.has_limits


@pytest.mark.parametrize(
    "expires",
    ["2030-01-31", "2030-01-31T00:00:00", "2030-01-31T00:00:00Z", "2030-01-31T02:00:00+02:00"],
)
def test_times_without_a_zone_are_in_utc(path: Path, expires: str):
    assert read_keys(write(path, f"{ALICE}expires = {expires}\n"))[0].expires == 1_896_048_000.0


BAD = [
    ("keys = 3", "each key is a table"),
    ("[key]\nname = 3", "'key'.*each key is a table"),
    ("[[keys]\n", "no TOML"),
    ("sk-one\nsk-two\n", "--api-key-file"),
    ('[[keys]]\nname = "alice"\n', "hash is missing"),
    (f'[[keys]]\nhash = "{HASH}"\n', "key 1: name is missing"),
    (ALICE + ALICE, "the name 'alice' twice"),
    (ALICE + ALICE.replace("alice", "bob"), "one key twice, as 'alice' and as 'bob'"),
    (ALICE + "requests_per_minut = 3", "'requests_per_minut' is unknown: did you mean 'requests_per_minute'"),
    (ALICE + 'colour = "red"', "'colour' is unknown: there are name, hash"),
    (ALICE + "streams = 0", "streams must be an integer from 1 on, not 0; leave it out to set no limit"),
    (ALICE + "tokens_per_day = -5", "tokens_per_day.*not -5"),
    (ALICE + "requests_per_minute = 1.5", "requests_per_minute.*not a float"),
    (ALICE + "requests_per_minute = true", "requests_per_minute.*not a bool"),
    (ALICE + "tokens_per_minute = 9007199254740993", "tokens_per_minute"),
    (ALICE + "models = []", "models.*leave it out to allow all"),
    (ALICE + 'models = "small"', "models must be a list"),
    (ALICE + "tier = 10", "tier must be an integer from 0"),
    (ALICE + "weight = 0", "weight must be a number above 0"),
    (ALICE + "weight = nan", "weight must be a number above 0"),
    (ALICE + "expires = 5", "expires must be a date"),
    (ALICE + "admin = 1", "admin must be true or false"),
    (f'[[keys]]\nname = "a\\nb"\nhash = "{HASH}"\n', r"key 'a\\nb': name must be"),
    (f'[[keys]]\nname = "a\'b"\nhash = "{HASH}"\n', "name must be"),
    (f'[[keys]]\nname = ""\nhash = "{HASH}"\n', "name must be"),
    (f'[[keys]]\nname = " a"\nhash = "{HASH}"\n', "name must be"),
    (f'[[keys]]\nname = "{"a" * 65}"\nhash = "{HASH}"\n', "name must be"),
    (f'[[keys]]\nname = 7\nhash = "{HASH}"\n', "key 1: name must be"),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=[words for _, words in BAD])
def test_what_is_wrong_is_refused_in_words(path: Path, text: str, words: str):
    with pytest.raises(SettingsError, match=words):
        read_keys(write(path, text))


def test_a_key_in_place_of_its_hash_is_not_repeated(path: Path):
    with pytest.raises(SettingsError, match="must be the SHA-256 of the key") as refused:
        read_keys(write(path, '[[keys]]\nname = "a"\nhash = "sk-secret"\n'))

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o601])
def test_a_file_that_others_may_read_or_change_is_refused(path: Path, mode: int):
    with pytest.raises(SettingsError, match=f"mode {mode:04o}.*chmod 600"):
        read_keys(write(path, ALICE, mode))


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_a_file_for_its_owner_and_the_group_is_read(path: Path, mode: int):
    assert read_keys(write(path, ALICE, mode))


def test_what_is_no_file_is_refused_and_not_waited_for(path: Path):
    with pytest.raises(SettingsError, match="No such file"):
        read_keys(str(path))
    os.mkfifo(path, 0o600)
    with pytest.raises(SettingsError, match="not a regular file"):
        read_keys(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(SettingsError, match=r"directory|regular file"):
        read_keys(str(path))


def test_bytes_that_are_no_text_are_refused(path: Path):
    path.write_bytes(b"\xff\xfe")
    path.chmod(0o600)

    with pytest.raises(SettingsError, match="cannot be read"):
        read_keys(str(path))


def test_ten_thousand_keys_are_read(path: Path):
    tables = (f'[[keys]]\nname = "key {n}"\nhash = "{n:064x}"\nrequests_per_minute = 60\n' for n in range(10_000))

    assert len(read_keys(write(path, "".join(tables)))) == 10_000


# Changes


def test_a_key_that_is_added_is_known_by_its_hash_alone(path: Path):
    key = add_key(str(path), "alice", {"requests_per_minute": 60, "models": ("small",), "tier": None})

    (entry,) = read_keys(str(path))
    assert key.startswith("sk-")
    assert len(key) >= 43
    assert entry == KeyEntry(
        name="alice", hash=hashlib.sha256(key.encode()).hexdigest(), requests_per_minute=60, models=("small",)
    )
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


FILE = f"""# Who may call.

{ALICE}streams = 2  # for now

# The one of the night.
[[keys]]
name = "bob"
hash = "{OTHER}"
"""


def test_a_change_leaves_the_rest_of_the_text_as_it_is(path: Path):
    write(path, FILE, 0o640)

    add_key(str(path), "carol", {})
    added = path.read_text()
    remove_key(str(path), "carol")

    assert added.startswith(FILE)
    assert path.read_text().rstrip() == FILE.rstrip()
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_removed_key_takes_no_comment_of_others_with_it(path: Path):
    write(path, FILE)

    remove_key(str(path), "alice")

    assert [entry.name for entry in read_keys(str(path))] == ["bob"]
    assert "# Who may call." in path.read_text()
    assert "# The one of the night.\n[[keys]]" in path.read_text()


def test_all_keys_may_be_removed(path: Path):
    key = add_key(str(path), "alice", {})

    remove_key(str(path), "alice")

    assert key
    assert read_keys(str(path)) == ()


@pytest.mark.parametrize(
    "text", [f'keys = [{{name = "alice", hash = "{HASH}"}}]\n', f'[[ keys ]]\n"name" = "alice"\nhash = "{HASH}"\n']
)
def test_a_file_that_is_written_otherwise_is_changed_rightly_or_not_at_all(path: Path, text: str):
    write(path, text)
    for change in (lambda: add_key(str(path), "bob", {}), lambda: remove_key(str(path), "alice")):
        before = read_keys(str(path))
        try:
            change()
        except SettingsError:
            assert read_keys(str(path)) == before
        else:
            assert len(read_keys(str(path))) != len(before)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("alice", {}, "'alice' twice"),
        ('a"b', {}, "name must be"),
        ("a\nb", {}, "name must be"),
        ("bob", {"streams": 0}, "streams must be"),
        ("bob", {"weight": float("nan")}, "weight must be"),
    ],
)
def test_a_wrong_change_changes_nothing(path: Path, name: str, options: dict[str, Any], words: str):
    write(path, ALICE)

    with pytest.raises(SettingsError, match=words):
        add_key(str(path), name, options)

    assert path.read_text() == ALICE
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_link_stays_a_link(path: Path, tmp_path: Path):
    target = tmp_path / "real.toml"
    write(target, ALICE)
    path.symlink_to(target)

    add_key(str(path), "bob", {})

    assert path.is_symlink()
    assert len(read_keys(str(target))) == 2


def test_changes_at_the_same_time_lose_none(path: Path):
    write(path, "")
    program = (
        "import sys; from corosrv.contracts.settings import add_key\n"
        f"for n in range(10): add_key({str(path)!r}, f'{{sys.argv[1]}}-{{n}}', {{}})"
    )

    adding = [subprocess.Popen([sys.executable, "-c", program, name]) for name in ("one", "two", "three")]

    assert [one.wait(60) for one in adding] == [0, 0, 0]
    assert len(read_keys(str(path))) == 30


# The commands


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def test_keys_are_added_listed_and_removed_by_commands(path: Path):
    added = run("add", "alice", "--file", str(path), "--tokens-per-day", "500", "--model", "small", "--admin")
    listed = run("list", "--file", str(path))
    removed = run("remove", "alice", "--file", str(path))

    assert added.output.startswith("sk-")
    assert listed.output == "alice  models=small  tokens_per_day=500  admin=True\n"
    assert added.output.strip() not in listed.output
    assert removed.exit_code == 0
    assert run("list", "--file", str(path)).output == "there is no key in it\n"


def test_a_key_that_is_not_there_is_told_with_the_nearest(path: Path):
    write(path, ALICE)

    assert "did you mean 'alice'" in run("remove", "alcie", "--file", str(path)).output


# The settings


def load(**overrides: Any) -> settings.Settings:
    return settings.load({"model": "synthetic:", **overrides}, environ={})


def test_a_server_with_a_file_of_keys_needs_one(path: Path):
    write(path, "")

    server = load(api_keys_file=str(path)).server

    assert server.needs_key
    assert server.keys == ()


def test_a_bad_file_stops_the_start(path: Path):
    with pytest.raises(SettingsError, match="mode 0644"):
        load(api_keys_file=write(path, ALICE, 0o644))
