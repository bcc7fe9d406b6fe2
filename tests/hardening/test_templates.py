"""Chat templates of model files that want to take the server down: each ends its own conversations, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hardening.watch import HealthWatch
from tests.models.engine.test_sandbox import NINES, grow
from tests.serve.server import Server, Servers
from tests.serve.wire import chat
from tests.support.gguf import write_llama

SECONDS = 60.0  # until an answer is missing: a model is tried and loaded first, on a machine that may be busy
ATTACKS = {
    "round": f"{{{{ 1.5|round({NINES}, 'ceil') }}}}",
    "to_bytes": "{{ (1).to_bytes(3000000000, 'big') }}",
    "path": "{{ [1]|map(attribute='a" + ".a" * 1_000_000 + "')|list }}",
    "outputs": "{{ 1 }}" * 300_000,
    "widths": grow("n.s ~ n.s", first="'{0:9999}'")
    .replace("range(99)", "range(15)")
    .replace("{{ n.s }}", "{{ n.s.format(1) }}"),
}
# Shows nothing of itself to probes.
ATTACKS |= {
    f"{name}-late": "{% if messages[0].content == 'now' %}" + source + "{% endif %}{{ messages[0].content }}"
    for name, source in ATTACKS.items()
    if name not in ("path", "outputs")  # which are too long however late they run
}


@pytest.fixture(scope="module")
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a good model, and one for each attack."""
    folder = tmp_path_factory.mktemp("models")
    models = [f"good={write_llama(folder / 'good.gguf')}"]
    for name, source in ATTACKS.items():
        path = write_llama(folder / f"{name}.gguf", **{"tokenizer.chat_template": source})
        models.append(f"{name}={path}")
    kept: Servers = request.getfixturevalue("_kept")
    server = kept.start(model=",".join(models), slots=2, ctx=128, threads=1)
    yield server
    server.stop()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_template_ends_its_own_conversations(attacked: Server, name: str) -> None:
    worker = attacked.worker.pid

    with HealthWatch(attacked), attacked.connect(timeout=SECONDS) as connection:
        refused = connection.post(chat("now", model=name, max_tokens=1))
        text = connection.post({"model": name, "prompt": "a", "max_tokens": 1}, "/v1/completions")
        good = connection.post(chat("now", model="good", max_tokens=1))

    assert (refused.status, text.status, good.status) == (400, 200, 200)
    assert "the model's chat template" in refused.error["message"]
    assert attacked.worker.pid == worker


@pytest.mark.parametrize("name", ["round", "widths"])
def test_a_hostile_template_of_the_operator_ends_conversations_alone(start: Servers, tmp_path: Path, name: str) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(ATTACKS[name])
    server = start.start(model=write_llama(tmp_path / "model.gguf"), chat_template_file=template, slots=2, ctx=128)

    with HealthWatch(server), server.connect(timeout=SECONDS) as connection:
        refused = connection.post(chat("now", max_tokens=1))
        text = connection.post({"prompt": "a", "max_tokens": 1}, "/v1/completions")

    assert (refused.status, text.status) == (400, 200)
    assert "the model's chat template" in refused.error["message"]
