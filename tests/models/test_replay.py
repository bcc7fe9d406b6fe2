"""Recordings of engines, replayed to the same steps and texts."""

import os
import re
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from corosrv.base.errors import ModelFailed
from corosrv.contracts.jobs import Sampling
from corosrv.models import replay as replaying
from corosrv.models.recording import RecordingHead, read_head
from corosrv.models.replay import replay, replay_file
from tests.load.recorder import record_and_kill, record_jobs, settings_of
from tests.support.engines import answer, job, opened, packaged_model

SYNTHETIC = "synthetic:?tokens_per_s=0&length=30"


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "engine.rec")


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_thousand_random_jobs_replay_to_the_same_steps_and_texts(path, said):
    record_jobs(settings_of(path, SYNTHETIC), 1000, seed=1)

    done = replay_file(path, said.append)

    assert done.is_same, said
    assert done.texts > 1000
    assert done.steps > 1000


def test_a_process_that_is_killed_leaves_a_recording_that_replays(path, said):
    record_and_kill(path, SYNTHETIC, 400, seed=2)

    done = replay_file(path, said.append)

    assert done.is_same, said
    assert done.steps > 100


@pytest.mark.model
def test_a_real_model_says_the_same_again_with_clients_that_leave(path, said):
    record_jobs(settings_of(path, packaged_model(), slots=4), 20, seed=3)

    done = replay_file(path, said.append)

    assert done.is_same, said
    assert done.texts >= 15


def test_a_replay_tells_of_steps_and_texts(path, said):
    with opened(model=SYNTHETIC, record=path) as engine:
        text = answer(engine, job())

    done = replay_file(path, said.append, tells=3)

    lines = "\n".join(said)
    assert f'job 1.0 length: "{text}"' in lines
    assert len(re.findall(r"^step \d+: ", lines, re.MULTILINE)) == done.steps


def test_a_recording_that_is_cut_is_replayed_up_to_there(path, said):
    record_jobs(settings_of(path, SYNTHETIC), 50, seed=4)
    size = os.path.getsize(path)

    for cut in (1000, 1001):  # one of them may be where a record ends
        os.truncate(path, size - cut)
        assert replay_file(path, said.append).is_same

    assert "the file ends within a record, or is damaged there: all whole ones before were replayed" in "\n".join(said)


def test_a_recording_without_a_record_is_refused(path, said):
    with opened(record=path):
        pass
    os.truncate(path, 4096)

    with pytest.raises(ModelFailed, match="nothing that could be replayed"):
        replay_file(path, said.append)


@pytest.mark.parametrize("changed", ["corosrv", "libllama"])
def test_a_recording_of_another_build_is_refused_unless_forced(path, said, monkeypatch, changed):
    with opened(record=path) as engine:
        answer(engine, job())
    other = lambda path: replace_head(path, **{changed: "other"})  # noqa: E731
    monkeypatch.setattr(replaying, "read_head", other)

    with pytest.raises(ModelFailed, match=rf"the recording is of {changed} other, and this is .*--force"):
        replay_file(path, said.append)
    assert replay_file(path, said.append, is_forced=True).is_same
    assert "steps may differ" in said[0]


def replace_head(path: str, **changes: Any) -> RecordingHead:
    return msgspec.structs.replace(read_head(path), **changes)


@pytest.mark.parametrize("options", [{"slots": "x"}, {"slots": 10**30}, {"kernels": "x"}, {"placement": None}])
def test_a_recording_with_options_that_no_engine_has_is_refused(path, said, monkeypatch, options):
    with opened(record=path) as engine:
        answer(engine, job(max_tokens=2))
    head = read_head(path)
    monkeypatch.setattr(replaying, "read_head", lambda path: replace_head(path, options=head.options | options))
    with pytest.raises(ModelFailed, match=r"the head of .* is damaged"):
        replay_file(path, said.append)


@pytest.mark.model
def test_a_recording_of_another_model_is_refused(path, said, tmp_path):
    model = tmp_path / "m.gguf"
    model.symlink_to(packaged_model())
    with opened(model=str(model), record=path) as engine:
        answer(engine, job(max_tokens=2))
    model.unlink()

    with pytest.raises(ModelFailed, match="cannot be read: No such file or directory; name the model's file with --m"):
        replay_file(path, said.append)
    model.write_bytes(b"GGUF, but of something else")
    with pytest.raises(ModelFailed, match="is not the file that was recorded with"):
        replay_file(path, said.append)
    assert replay_file(path, said.append, model=packaged_model()).is_same


def test_a_synthetic_recording_takes_no_file(path, said):
    with opened(record=path) as engine:
        answer(engine, job())

    with pytest.raises(ModelFailed, match="leave out --model"):
        replay_file(path, said.append, model="m.gguf")


def test_an_engine_that_cannot_record_is_not_opened(tmp_path):
    with pytest.raises(ModelFailed, match=r"COROSRV_RECORD: .* is no file"), opened(record=str(tmp_path)):
        pass


def test_the_command_replays_and_ends_with_0_1_or_2(path, monkeypatch):
    with opened(record=path) as engine:
        answer(engine, job(sampling=Sampling(seed=1)))
    run = CliRunner().invoke

    same = run(replay, [path])
    assert (same.exit_code, same.stdout.splitlines()[-1]) == (0, "8 steps and 1 texts replayed: all as recorded")
    assert run(replay, [path, "--until", "3"]).stdout.splitlines()[-1].startswith("3 steps and 0 texts")
    monkeypatch.setattr(replaying, "read_head", lambda path: _of_longer(path))
    differs = run(replay, [path])
    assert differs.exit_code == 1, differs.output
    assert "of them differ" in differs.stdout
    os.truncate(path, 0)
    monkeypatch.undo()
    assert (run(replay, [path]).exit_code, run(replay, [path]).stderr) == (2, f"corosrv: {path} is empty\n")


def _of_longer(path: str) -> RecordingHead:
    """The head as if the model ended its answers sooner."""
    head = read_head(path)
    synthetic = {**head.options["synthetic"], "length": 4}
    return replace_head(path, options={**head.options, "synthetic": synthetic})
