import dataclasses
import pathlib

import pytest

from corosrv.worker import BaseModel, File, Input, Path, Secret


def test_a_secret_shows_as_stars_everywhere_but_where_it_is_asked_for():
    secret = Secret("hunter2")

    assert "hunter2" not in f"{secret} {secret!r} {[secret]}"
    assert secret.get_secret_value() == "hunter2"
    assert (str(secret), str(Secret())) == ("*" * 10, "")


def test_a_model_is_a_dataclass_without_further_words():
    class Answer(BaseModel):
        text: str
        score: float = 1.0

    class Longer(Answer):
        more: str = ""

    assert Answer("x") == Answer(text="x", score=1.0)
    assert [field.name for field in dataclasses.fields(Longer)] == ["text", "score", "more"]


def test_a_model_may_be_left_to_its_author():
    class Manual(BaseModel, auto_dataclass=False):
        def __init__(self) -> None:
            self.text = "x"

    assert not dataclasses.is_dataclass(Manual)


def test_a_file_is_open_for_reading_and_has_a_name(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"abc")

    with File(tmp_path / "a.txt") as file:
        assert (file.read(), pathlib.Path(file.name).name) == (b"abc", "a.txt")


def test_parts_of_a_path_are_paths_of_its_kind():
    assert type(Path("a") / "b") is Path
    assert isinstance(Path("a"), pathlib.Path)


def test_an_input_refuses_words_that_it_does_not_know():
    with pytest.raises(TypeError, match="maximum"):
        Input(maximum=3)
