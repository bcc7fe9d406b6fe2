"""Downloads from a hub: what comes into the cache, what is left behind when something goes wrong."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from corosrv.base.errors import HubError
from corosrv.contracts.settings import HubSettings
from corosrv.contracts.settings import model_list as hub_name
from corosrv.models.hub.client import PulledModel, pull
from tests.support.hub_server import TOKEN, HubServer, Repo, sha256

MODEL = random.Random(1).randbytes(20_000)
OTHER = random.Random(2).randbytes(3_000)


def run(name: str = "hf:o/r", token: str = "", with_projector: bool = True) -> PulledModel:
    return pull(hub_name.parse_hub_name(name), lambda n_bytes, total: None, HubSettings(hf_token=token), with_projector)


def partial_of(cache: Path, content: bytes) -> Path:
    return cache / "models--o--r" / "blobs" / f"{sha256(content)}.incomplete"


def begun(cache: Path, content: bytes, there: bytes) -> Path:
    """A download that an earlier try has left at these bytes."""
    partial = partial_of(cache, content)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(there)
    return partial


def blobs(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.glob("*/blobs/*"))


def test_a_model_is_downloaded_once_and_then_taken_from_the_cache(hub: HubServer, cache: Path) -> None:
    hub.repos["o/r"] = Repo({"m-Q4_K_M.gguf": MODEL, "README.md": b"read"})
    seen: list[tuple[int, int]] = []

    pulled = pull(hub_name.parse_hub_name("hf:o/r"), lambda *progress: seen.append(progress), HubSettings())
    again = run()

    assert Path(pulled.model).read_bytes() == MODEL
    assert (pulled.size, pulled.n_files, pulled.mmproj, pulled.offline) == (20_000, 1, "", "")
    assert (seen[0], seen[-1]) == ((0, 20_000), (20_000, 20_000))
    assert again == pulled
    assert hub.ranges() == [""]
    assert blobs(cache) == [sha256(MODEL)]


def test_the_library_finds_what_was_downloaded(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"sub/m-Q4_K_M.gguf": MODEL})
    pulled = run()
    from huggingface_hub import try_to_load_from_cache

    assert try_to_load_from_cache("o/r", "sub/m-Q4_K_M.gguf") == pulled.model


def test_a_download_goes_on_where_the_last_one_ended(hub: HubServer, cache: Path) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL})
    begun(cache, MODEL, MODEL[:7_000])

    pulled = run()

    assert hub.ranges() == ["bytes=7000-"]
    assert Path(pulled.model).read_bytes() == MODEL
    assert blobs(cache) == [sha256(MODEL)]


def test_a_download_that_was_complete_is_only_checked(hub: HubServer, cache: Path) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL})
    begun(cache, MODEL, MODEL)

    assert Path(run().model).read_bytes() == MODEL
    assert hub.ranges() == []


def test_a_longer_leftover_is_begun_anew(hub: HubServer, cache: Path) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL})
    begun(cache, MODEL, MODEL + b"more")

    assert Path(run().model).read_bytes() == MODEL
    assert hub.ranges() == [""]


def test_a_file_that_ends_early_leaves_what_came_and_the_next_try_ends_it(hub: HubServer, cache: Path) -> None:
    repo = hub.repos["o/r"] = Repo({"m.gguf": MODEL}, fault=lambda path, content: content[:12_000])
    with pytest.raises(HubError, match="what was downloaded stays for the next try"):
        run()
    assert partial_of(cache, MODEL).read_bytes() == MODEL[:12_000]

    repo.fault = lambda path, content: content
    pulled = run()

    assert Path(pulled.model).read_bytes() == MODEL
    assert hub.ranges()[-1] == "bytes=12000-"


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(hub: HubServer, cache: Path) -> None:
    repo = hub.repos["o/r"] = Repo({"m.gguf": MODEL}, fault=lambda path, content: b"\0" + content[1:])

    with pytest.raises(HubError, match=f"the checksum of m.gguf is wrong: .* should be {sha256(MODEL)}"):
        run()

    assert blobs(cache) == []
    assert not list(cache.glob("*/snapshots/*/*"))
    repo.fault = lambda path, content: content
    assert Path(run().model).read_bytes() == MODEL


def test_a_spoilt_leftover_is_found_by_the_checksum(hub: HubServer, cache: Path) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL})
    begun(cache, MODEL, bytes(5_000))

    with pytest.raises(HubError, match="checksum"):
        run()

    assert Path(run().model).read_bytes() == MODEL


def test_the_parts_and_the_projector_lie_side_by_side(hub: HubServer) -> None:
    parts = {f"m-Q8_0-0000{part}-of-00002.gguf": MODEL[part:] for part in (1, 2)}
    hub.repos["o/r"] = Repo({**parts, "mmproj-F16.gguf": OTHER})

    pulled = run()

    assert (pulled.n_files, pulled.size) == (3, len(MODEL) * 2 - 3 + len(OTHER))
    assert pulled.model.endswith("/m-Q8_0-00001-of-00002.gguf")
    assert sorted(path.name for path in Path(pulled.model).parent.iterdir()) == sorted([*parts, "mmproj-F16.gguf"])
    assert Path(pulled.mmproj).read_bytes() == OTHER


def test_a_projector_that_is_not_wanted_is_not_downloaded(hub: HubServer, cache: Path) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL, "mmproj-F16.gguf": OTHER})

    assert run(with_projector=False).mmproj == ""
    assert blobs(cache) == [sha256(MODEL)]


def test_a_revision_is_downloaded_beside_the_newest(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL}, {"v1": {"m.gguf": OTHER}, "refs/pr/1": {"m.gguf": OTHER[1:]}})

    contents = [Path(run(name).model).read_bytes() for name in ("hf:o/r", "hf:o/r@v1", "hf:o/r@refs%2Fpr%2F1/m.gguf")]

    assert contents == [MODEL, OTHER, OTHER[1:]]
    hub.is_down = True
    assert Path(run("hf:o/r@v1").model).read_bytes() == OTHER


def test_a_new_commit_is_downloaded(hub: HubServer) -> None:
    repo = hub.repos["o/r"] = Repo({"m.gguf": OTHER})
    run()

    repo.files = {"m.gguf": MODEL}

    assert Path(run().model).read_bytes() == MODEL


@pytest.mark.parametrize(
    ("repo", "name", "words"),
    [
        (Repo(), "hf:o/none", "has no repository o/none, or one that needs a token which may read it"),
        (Repo(needs_token=True), "hf:o/r", r"HF_TOKEN or --hf-token\): status 401"),
        (Repo(is_gated=True), "hf:o/r", "o/r is gated: accept its terms on http.*/o/r, and give a token"),
        (Repo({"m.gguf": MODEL}), "hf:o/r@v9", "o/r has no revision 'v9'"),
        (Repo({"m.gguf": MODEL}), "hf:o/r:Q8_0", "o/r has no model of Q8_0; its GGUF files: m.gguf"),
        (Repo({"m.gguf": MODEL}), "hf:o/r/n.gguf", "o/r has no file n.gguf"),
        (Repo({"m.gguf": MODEL}, size_told=10**18), "hf:o/r", r"needs 1000000000\.00 GB more, and .* make room"),
        (Repo({"../../m.gguf": MODEL}), "hf:o/r", "o/r has no GGUF model"),
    ],
)
def test_what_cannot_be_had_is_refused_in_words_and_leaves_nothing(
    hub: HubServer, cache: Path, repo: Repo, name: str, words: str
) -> None:
    hub.repos["o/r"] = repo

    with pytest.raises(HubError, match=words):
        run(name)

    assert not list(cache.rglob("*"))


def test_a_token_opens_a_repository_and_goes_to_the_hub_alone(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL}, needs_token=True)

    assert Path(run(token=TOKEN).model).read_bytes() == MODEL  # the server asserts that it came without one


def test_the_library_s_own_token_is_used(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL}, is_gated=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    assert Path(run().model).read_bytes() == MODEL


def test_a_hub_that_is_down_leaves_the_cache(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m-Q4_K_M.gguf": MODEL})
    online = run()
    hub.is_down = True

    offline = run("hf:o/r:q4_k_m")

    assert offline.model == online.model
    assert "could not be had" in offline.offline
    with pytest.raises(HubError, match=r"o/other is not in the cache .*, and o/other could not be had"):
        run("hf:o/other")
    with pytest.raises(HubError, match="o/r has no model of Q8_0"):
        run("hf:o/r:Q8_0")


def test_a_model_that_is_cached_in_part_is_not_served_without_the_hub(hub: HubServer) -> None:
    parts = {f"m-Q8_0-0000{part}-of-00002.gguf": MODEL[part:] for part in (1, 2)}
    repo = hub.repos["o/r"] = Repo(parts)
    pulled = run()
    (Path(pulled.model).parent / "m-Q8_0-00002-of-00002.gguf").unlink()
    hub.is_down = True

    with pytest.raises(HubError, match="has 2 parts, of which 1 are there"):
        run()

    assert repo.files == parts


def test_nobody_is_asked_where_the_library_is_told_to_stay_offline(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL})
    online = run()
    hub.requests.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    assert run().model == online.model
    assert run().offline == "HF_HUB_OFFLINE is set"
    assert hub.requests == []


def test_two_that_want_the_same_file_download_it_once(hub: HubServer) -> None:
    gate = threading.Event()
    hub.repos["o/r"] = Repo({"m.gguf": MODEL}, gate=gate)
    pulled: list[PulledModel] = []
    threads = [threading.Thread(target=lambda: pulled.append(run())) for _ in range(2)]
    for thread in threads:
        thread.start()

    gate.set()
    for thread in threads:
        thread.join(60)

    assert hub.ranges() == [""]
    assert [Path(model.model).read_bytes() for model in pulled] == [MODEL, MODEL]


@pytest.mark.parametrize("etag", ["../../../etc/passwd", "a/b", "", "..", "x" * 200, "a b c d e f"])
def test_an_etag_that_is_no_file_name_is_refused(cache: Path, etag: str) -> None:
    from corosrv.models.hub.cache import RepoCache

    with pytest.raises(HubError, match="an ETag that cannot be a file's name"):
        RepoCache(cache, "o/r").blob(etag)


@pytest.mark.parametrize(("commit", "path"), [("../..", "m.gguf"), ("a" * 39, "m.gguf"), ("a" * 40, "../m.gguf")])
def test_a_commit_or_path_that_leads_elsewhere_is_refused(cache: Path, commit: str, path: str) -> None:
    from corosrv.models.hub.cache import RepoCache

    with pytest.raises(HubError):
        RepoCache(cache, "o/r").file(commit, path)
