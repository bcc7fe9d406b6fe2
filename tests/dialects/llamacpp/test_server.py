"""What llama-server tells of itself: tokens, slots, files of slots, and properties."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import msgspec
import pytest

from corosrv.base.errors import NotFound, Refused
from corosrv.contracts.jobs import Defaults, ModelCard, Sampling, SlotFile, SlotState
from corosrv.dialects.llamacpp import loading, parse, routes, slots
from corosrv.dialects.llamacpp.loading import Switches
from corosrv.dialects.llamacpp.parse import DetokenizeBody, TokenizeBody
from corosrv.dialects.llamacpp.slots import SlotFiles
from tests.support.vocabularies import BOS, EOS, ByteVocabulary

CARD = ModelCard("tiny", created=1, meta={"n_ctx": 100, "ftype": "Q4_1"}, file="tiny.gguf", slots=4)


# Tokens.


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, [*b"Hi", EOS]),
        ({"add_special": True}, [BOS, *b"Hi", EOS]),
        ({"parse_special": False}, [*b"Hi</s>"]),
    ],
)
def test_a_text_is_split_as_it_is_asked_for(sent, expected):
    assert routes.tokens_of(TokenizeBody("Hi</s>", **sent), ByteVocabulary(adds_bos=True)) == {"tokens": expected}


def test_texts_and_tokens_in_a_row_are_split_as_one():
    sent = TokenizeBody(["a", 98, "c</s>"], add_special=True)

    assert routes.tokens_of(sent, ByteVocabulary(adds_bos=True)) == {"tokens": [BOS, *b"abc", EOS]}
    with pytest.raises(Refused, match=r"content\[0\]"):
        routes.tokens_of(TokenizeBody([263]), ByteVocabulary())


def test_texts_of_a_list_are_bounded():
    too_many = ["a"] * (parse.MAX_TEXTS + 1)

    with pytest.raises(Refused, match="at most 8192 texts"):
        routes.tokens_of(TokenizeBody(too_many), ByteVocabulary())
    assert len(routes.tokens_of(TokenizeBody(too_many[1:]), ByteVocabulary())["tokens"]) == parse.MAX_TEXTS


def test_tokens_of_a_lists_texts_are_bounded():
    with pytest.raises(Refused, match="over 524288 tokens"):
        routes.tokens_of(TokenizeBody(["a" * 100_000] * 6), ByteVocabulary(longest=10**6))


class SlowVocabulary(ByteVocabulary):
    """Takes a millisecond for each text."""

    def tokenize(self, *arguments: Any, **named: Any) -> list[int]:
        end = time.monotonic() + 0.001
        while time.monotonic() < end:
            pass
        return super().tokenize(*arguments, **named)


def test_others_run_while_the_texts_of_a_list_are_split():
    splitting = gevent.spawn(routes.tokens_of, TokenizeBody(["a"] * 100), SlowVocabulary())
    n_turns = 0
    while not splitting.ready():
        gevent.sleep(0.0001)
        n_turns += 1

    assert n_turns > 10


def test_pieces_are_text_where_they_can_be():
    shown = routes.tokens_of(TokenizeBody("aé", with_pieces=True), ByteVocabulary())

    assert shown == {"tokens": [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]}


def test_tokens_are_joined_before_they_are_read_as_text():
    assert routes.text_of(DetokenizeBody([*"é".encode(), EOS]), ByteVocabulary()) == {"content": "é</s>"}
    assert routes.text_of(DetokenizeBody([]), ByteVocabulary()) == {"content": ""}


def test_an_unknown_token_is_refused():
    with pytest.raises(Refused, match="tokens"):
        routes.text_of(DetokenizeBody([263]), ByteVocabulary())


# Slots.

USED = SlotState(1, True, 7, 10, 6, 4, 3, 8, has_new_line=True, sampling=Sampling(temperature=0))


def test_a_slot_that_was_never_used_tells_no_more_than_its_size():
    assert slots.describe(SlotState(0, False), CARD) == {
        "id": 0,
        "n_ctx": 100,
        "speculative": False,
        "is_processing": False,
    }


def test_a_slot_tells_nothing_of_another_callers_task():
    theirs = msgspec.structs.replace(USED, caller="them")

    assert slots.describe(theirs, CARD, "us") == {"id": 1, "n_ctx": 100, "speculative": False, "is_processing": True}
    assert slots.describe(theirs, CARD, "them")["params"]["seed"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_slot_tells_whether_its_answer_is_streamed(stream):
    assert slots.describe(msgspec.structs.replace(USED, stream=stream), CARD)["params"]["stream"] is stream


def test_a_busy_slot_tells_how_far_it_is():
    shown = slots.describe(USED, CARD)

    assert shown["params"].pop("temperature") == 0
    assert shown.pop("params")["n_predict"] == 8
    assert shown == {
        "id": 1,
        "n_ctx": 100,
        "speculative": False,
        "is_processing": True,
        "id_task": 7,
        "n_prompt_tokens": 10,
        "n_prompt_tokens_processed": 6,
        "n_prompt_tokens_cache": 4,
        "next_token": [{"has_next_token": True, "has_new_line": True, "n_remain": 5, "n_decoded": 3}],
    }


def test_a_slot_tells_nobody_s_text():
    sampling = Sampling(grammar='root ::= "secret"', logit_bias=(("secret", 1.0),), dry_sequence_breakers=("secret",))

    assert "secret" not in str(slots.describe(SlotState(0, True, 1, sampling=sampling), CARD))


def test_an_idle_slot_has_nothing_left_to_do():
    idle = slots.describe(SlotState(1, False, 7, 10, 10, 0, 3, 8, sampling=Sampling()), CARD)

    assert idle["next_token"][0] == {"has_next_token": False, "has_new_line": False, "n_remain": -1, "n_decoded": 0}


@pytest.mark.parametrize("name", ["4", "99", "x", "-1", "1.5", "", "9999999999", "¹"])
def test_a_slot_that_there_is_not_is_refused(name):
    with pytest.raises(Refused):
        slots.number(name, 4)


def test_a_slot_is_known_by_its_number():
    assert [slots.number(name, 4) for name in ("0", "3")] == [0, 3]


class Slots:
    """Writes which slot it was."""

    def slots(self, model: str | None) -> tuple[SlotState, ...]:
        return ()

    def save_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        return SlotFile(slot, Path(path).write_bytes(b"state"))

    def restore_slot(self, model: str | None, slot: int, path: str, caller: str = "") -> SlotFile:
        return SlotFile(slot, len(Path(path).read_bytes()))

    def erase_slot(self, model: str | None, slot: int, caller: str = "") -> int:
        return slot


def test_a_slot_is_kept_in_a_file_of_the_folder(tmp_path):
    files = SlotFiles(Slots(), str(tmp_path))

    saved, restored = files.save(None, 3, "a.bin"), files.restore(None, 3, "a.bin")

    assert (tmp_path / "a.bin").read_bytes() == b"state"
    assert saved.pop("timings")["save_ms"] >= 0
    assert saved == {"id_slot": 3, "filename": "a.bin", "n_saved": 3, "n_written": 5}
    assert restored.pop("timings")["restore_ms"] >= 0
    assert restored == {"id_slot": 3, "filename": "a.bin", "n_restored": 3, "n_read": 5}
    assert files.erase(None, 3) == {"id_slot": 3, "n_erased": 3}


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", "/a", "a\\b", "a\0b", "ä", "a b", "a\n", "x" * 129])
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path, name):
    files = SlotFiles(Slots(), str(tmp_path))

    for act in (files.save, files.restore):
        with pytest.raises(Refused, match="filename"):
            act(None, 0, name)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    files = SlotFiles(Slots(), str(tmp_path))

    for act in (files.save, files.restore):
        with pytest.raises(Refused, match="link"):
            act(None, 0, "link")
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_a_slot_is_not_saved_over_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    files = SlotFiles(Slots(), str(tmp_path))

    for act in (files.save, files.restore):
        with pytest.raises(Refused, match="folder") as refused:
            act(None, 0, "a")
        assert refused.value.param == "filename"


def test_no_slot_is_saved_in_a_folder_that_is_full(tmp_path):
    files = SlotFiles(Slots(), str(tmp_path), most_bytes=6)
    for name in ("a.bin", "b.bin"):
        files.save(None, 0, name)

    with pytest.raises(Refused, match=r"10 bytes.*COROSRV_SLOT_SAVE_BYTES") as refused:
        files.save(None, 0, "c.bin")

    assert refused.value.code == "slot_folder_full"
    files.save(None, 0, "a.bin")  # in the place of the same: no more than before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "b.bin"]


def test_files_in_the_folder_of_slots_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(slots, "MOST_FILES", 2)
    files = SlotFiles(Slots(), str(tmp_path))
    for name in ("a.bin", "b.bin"):
        files.save(None, 0, name)

    with pytest.raises(Refused, match="2 files"):
        files.save(None, 0, "c.bin")


def test_a_file_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(NotFound):
        SlotFiles(Slots(), str(tmp_path)).restore(None, 0, "a.bin")


# Properties.


def test_properties_tell_what_the_server_is_and_does():
    switches = Switches(slots=True, props=False, metrics=True, slot_save_path="/secret")

    defaults = Defaults(max_tokens=9, temperature=0.5, seed=3, more={"top_k": 20})
    card = replace(
        CARD, defaults=defaults, bos="<s>", eos="</s>", template_abilities=frozenset({"system"}), fingerprint="b1"
    )
    shown = loading.describe(card, switches)

    settings = shown["default_generation_settings"]
    assert settings["n_ctx"] == 100
    chosen = {"n_predict": 9, "temperature": 0.5, "seed": 3, "top_k": 20}
    assert {name: settings["params"][name] for name in chosen} == chosen
    assert (shown["total_slots"], shown["model_alias"], shown["model_path"]) == (4, "tiny", "tiny.gguf")
    assert (shown["bos_token"], shown["eos_token"]) == ("<s>", "</s>")
    assert (shown["endpoint_slots"], shown["endpoint_props"], shown["endpoint_metrics"]) == (True, False, True)
    assert shown["chat_template_caps"]["supports_system_role"] is True
    assert shown["chat_template_caps"]["supports_tools"] is False
    assert shown["chat_template_caps"]["supports_string_content"] is True
    assert (shown["ui"], shown["cors_proxy_enabled"]) == (False, False)
    assert loading.describe(card, replace(switches, page=True))["ui"] is True
    assert shown["default_generation_settings"]["params"]["timings_per_token"] is False
    assert "secret" not in str(shown)
