"""How the end of an encoder process is put into words."""

import pytest

from corosrv.images.encoder.check import describe_end


@pytest.mark.parametrize(
    ("fatal", "has_answered", "words"),
    [
        ("no such file", False, "the encoder cannot serve: no such file"),
        ("out of memory", True, "the encoder cannot serve: out of memory"),
        ("", True, "the encoder process ended by signal 9 while it served"),
        (
            "",
            False,
            "the encoder process ended by signal 9 while it opened the projector p.gguf and the model m.gguf; "
            "libmtmd does not survive a projector file that is damaged or lacks tensors",
        ),
    ],
)
def test_the_end_of_an_encoder_is_told_with_what_it_was_doing(fatal: str, has_answered: bool, words: str):
    assert describe_end("signal 9", fatal, has_answered, "m.gguf", "p.gguf") == words
