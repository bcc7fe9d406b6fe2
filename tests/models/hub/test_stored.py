"""The models in the cache: listed, and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from corosrv.base.errors import HubError
from corosrv.contracts.settings import model_list as hub_name
from corosrv.models.hub.cache import remove, stored_models
from tests.models.hub.test_pull import MODEL, OTHER, run
from tests.support.hub_server import HubServer, Repo


def test_an_empty_cache_lists_nothing(hub: HubServer) -> None:
    assert stored_models() == []


def test_models_are_listed_with_their_files_and_sizes(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": OTHER})
    hub.repos["a/b"] = Repo({"m.gguf": OTHER})
    for name in ("hf:o/r", "hf:o/r:Q8_0", "hf:a/b"):
        run(name)

    models = stored_models()

    assert [(model.repo, model.size, model.files) for model in models] == [
        ("a/b", 3_000, ("m.gguf",)),
        ("o/r", 23_000, ("m-Q4_K_M.gguf", "m-Q8_0.gguf")),
    ]
    assert str(models[1]).startswith("hf:o/r  0 MB  used 20")


def test_a_quantisation_is_removed_and_the_rest_stays(hub: HubServer, cache: Path) -> None:
    hub.repos["o/r"] = Repo({"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": OTHER})
    run("hf:o/r")
    run("hf:o/r:Q8_0")

    assert remove(hub_name.parse_hub_name("hf:o/r:q4_k_m")) == 20_000

    assert [model.files for model in stored_models()] == [("m-Q8_0.gguf",)]
    assert [path.stat().st_size for path in cache.glob("*/blobs/*")] == [3_000]


def test_a_file_that_two_commits_share_is_removed_with_the_last_of_them(hub: HubServer, cache: Path) -> None:
    repo = hub.repos["o/r"] = Repo({"m-Q8_0.gguf": MODEL})
    run()
    repo.files = {"m-Q8_0.gguf": MODEL, "README.md": b"new"}
    run()
    assert len(list(cache.glob("*/snapshots/*/*.gguf"))) == 2

    assert remove(hub_name.parse_hub_name("hf:o/r:Q8_0")) == 20_000

    assert not list(cache.glob("*/blobs/*"))
    assert not list(cache.glob("*/snapshots/*/*"))


def test_a_content_that_another_file_has_too_stays(hub: HubServer) -> None:
    hub.repos["o/r"] = Repo({"m-Q4_K_M.gguf": MODEL, "m-Q8_0.gguf": MODEL})
    run("hf:o/r")
    other = run("hf:o/r:Q8_0")

    assert remove(hub_name.parse_hub_name("hf:o/r:Q4_K_M")) == 0

    assert Path(other.model).read_bytes() == MODEL
    assert [model.files for model in stored_models()] == [("m-Q8_0.gguf",)]


def test_a_repository_is_removed_with_what_was_begun(hub: HubServer, cache: Path) -> None:
    hub.repos["o/r"] = Repo({"m-Q8_0.gguf": MODEL})
    run()
    (cache / "models--o--r" / "blobs" / "other.incomplete").write_bytes(OTHER)

    assert remove(hub_name.parse_hub_name("hf:o/r")) == 23_000

    assert not (cache / "models--o--r").exists()


@pytest.mark.parametrize("name", ["hf:o/none", "hf:o/r:Q4_K_M", "hf:o/r/n.gguf"])
def test_what_is_not_there_cannot_be_removed(hub: HubServer, name: str) -> None:
    hub.repos["o/r"] = Repo({"m-Q8_0.gguf": MODEL})
    run()

    with pytest.raises(HubError, match="is not in the cache: corosrv models lists what is"):
        remove(hub_name.parse_hub_name(name))

    assert [model.repo for model in stored_models()] == ["o/r"]
