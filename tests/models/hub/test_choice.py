"""Which files of a repository a name stands for: as llama-server chooses."""

import pytest

from corosrv.base.errors import HubError
from corosrv.contracts.settings import model_list
from corosrv.models.hub.cache import RepoFile, choose

USUAL = ["README.md", "m-F16.gguf", "m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]
SPLIT = [f"Q5/m-Q5_K_M-{part:05}-of-00003.gguf" for part in (3, 1, 2)]
IMAGES = ["m-Q8_0.gguf", "mmproj-m-F16.gguf", "mmproj-m-Q8_0.gguf"]


def chosen(paths: list[str], name: str = "o/r", **options: bool) -> list[str]:
    return [
        file.path
        for file in choose([RepoFile(path, 7) for path in paths], model_list.parse_hub_name(name), **options).all
    ]


@pytest.mark.parametrize(
    ("paths", "name", "model"),
    [
        (USUAL, "o/r", "m-Q4_K_M.gguf"),
        (["m-F16.gguf", "m-Q8_0.gguf"], "o/r", "m-Q8_0.gguf"),
        (["m-Q6_K.gguf", "m-F16.gguf"], "o/r", "m-Q6_K.gguf"),
        (USUAL, "o/r:q8_0", "m-Q8_0.gguf"),
        (USUAL, "o/r:Q4", None),
        (USUAL, "o/r:F16", "m-F16.gguf"),
        (USUAL, "o/r/m-Q4_0.gguf", "m-Q4_0.gguf"),
        (["m-Q5_K_M.gguf", "sub/m-Q4_K_M.gguf"], "o/r", "sub/m-Q4_K_M.gguf"),
        (["m.Q4_K_M.gguf"], "o/r", "m.Q4_K_M.gguf"),
        (["imatrix.gguf", "mtp-m.gguf", "m-BF16.gguf"], "o/r", "m-BF16.gguf"),
    ],
)
def test_the_file_is_llama_server_s(paths, name, model):
    if model is None:
        with pytest.raises(HubError, match=r"o/r has no model of Q4; its GGUF files: m-F16\.gguf, m-Q4_0\.gguf"):
            chosen(paths, name)
    else:
        assert chosen(paths, name) == [model]


@pytest.mark.parametrize("name", ["o/r:Q5_K_M", f"o/r/{SPLIT[1]}", f"o/r/{SPLIT[0]}"])
def test_all_parts_of_a_model_come_the_first_one_first(name):
    assert chosen([*SPLIT, "m-Q4_K_M.gguf"], name) == sorted(SPLIT)


def test_a_model_without_one_of_its_parts_is_refused():
    with pytest.raises(HubError, match="has 3 parts, of which 2 are there"):
        chosen(SPLIT[:2], "o/r:Q5_K_M")


def test_the_projector_of_the_closest_quantisation_comes_along():
    assert chosen(IMAGES) == ["m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"]
    assert chosen([*IMAGES, "m-BF16.gguf"], "o/r:BF16") == ["m-BF16.gguf", "mmproj-m-F16.gguf"]


def test_a_projector_stands_in_the_model_s_folder_or_above_it():
    paths = ["Q8/m-Q8_0.gguf", "mmproj-F16.gguf", "other/mmproj-Q8_0.gguf"]

    assert chosen(paths) == ["Q8/m-Q8_0.gguf", "mmproj-F16.gguf"]
    assert chosen([*paths, "Q8/mmproj-F32.gguf"])[1:] == ["Q8/mmproj-F32.gguf"]


def test_a_projector_that_is_not_wanted_is_left():
    assert chosen(IMAGES, with_projector=False) == ["m-Q8_0.gguf"]


@pytest.mark.parametrize("path", ["../m-Q4_K_M.gguf", "/m-Q4_K_M.gguf", "a//m-Q4_K_M.gguf", "a\\..\\m-Q4_K_M.gguf"])
def test_a_listed_file_that_leads_elsewhere_is_never_chosen(path):
    with pytest.raises(HubError, match="o/r has no GGUF model"):
        chosen([path])


def test_a_repository_without_models_is_refused_by_name():
    with pytest.raises(HubError, match=r"o/r has no file m\.gguf"):
        chosen(["README.md"], "o/r/m.gguf")
