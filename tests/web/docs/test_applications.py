"""The programs in the guide's page on applications are whole, and run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from corosrv.worker import ModelInferRequest, Tensor

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "applications.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(marker: str, **names: Any) -> dict[str, Any]:
    """Runs the one program on the page that has a marker; returns what it defines."""
    (program,) = [block for block in BLOCKS if marker in block]
    exec(program, names)
    return names


def test_the_typed_program_serves_what_the_command_sends() -> None:
    app = run('App("typed")')["app"]

    answer = app.test_call("scale", ModelInferRequest([Tensor("numbers", "FP64", [3], data=[1, 2, 3])]))

    assert answer["output"].data == [2.0, 4.0, 6.0]


def test_the_program_of_requests_passes_the_test_that_the_page_shows() -> None:
    names = run("def test_numbers_are_added", **run('App("basic")'))

    names["test_numbers_are_added"]()


def test_the_class_counts_and_the_batch_answers_each_request() -> None:
    counter, basic = run('App("classes")')["app"], run('App("basic")')
    run("def embed", **basic)
    texts = [ModelInferRequest([Tensor("texts", "BYTES", [1], data=[text])]) for text in ("a", "bcd")]

    assert counter.test_call("counter", ModelInferRequest())["output"].data == [1]
    assert [answer["n"].data for answer in basic["app"].test_call("embed", texts)] == [[1], [3]]


def test_the_lines_about_objects_run() -> None:
    (program,) = [block for block in BLOCKS if "context.objects.create" in block]
    lines = "".join(f"    {line}\n" for line in program.splitlines())
    names = run('App("basic")')
    exec(f"def use(request, context):\n    array = [1.5]\n{lines}    return {{}}\n", names)
    names["app"].model("use")(names["use"])
    names["app"].model("sum")(lambda request: {})

    assert names["app"].test_call("use", ModelInferRequest()).outputs == []
