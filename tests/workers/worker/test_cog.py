"""Predictors written for Cog, read as they are, where the package is installed."""

# ruff: noqa: B008, UP045 - as authors write

from collections.abc import Iterator
from typing import Annotated, Any, Optional

import pytest

from corosrv.contracts.jobs.setup import FileRef
from corosrv.workers.worker.signatures.signature import Signature, document, read
from corosrv.workers.worker.values.inputs import Inputs
from corosrv.workers.worker.values.outputs import encode

cog = pytest.importorskip("cog")
inspector = pytest.importorskip("cog._inspector")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Answer(cog.BaseModel):
    text: str
    score: float
    image: Optional[cog.Path] = None


class Many(cog.BasePredictor):
    def setup(self, weights: Optional[cog.Path] = None): ...

    @cog.streaming
    def predict(
        self,
        prompt: str = cog.Input(description="What to say", min_length=1, max_length=9, regex="^a"),
        image: cog.Path = cog.Input(),
        mask: Optional[cog.Path] = cog.Input(default=None),
        file: cog.File = cog.Input(),
        steps: int = cog.Input(default=3, ge=1, le=5),
        seed: int = cog.Input(default=None),
        style: str = cog.Input(choices=["a", "b"], default="a"),
        size: int = cog.Input(choices=[1, 2], default=1),
        tags: list[str] = cog.Input(default=["x"], deprecated=True),
        key: Optional[cog.Secret] = cog.Input(),
        scale: float = 0.5,
        loud: bool = False,
        options: dict = cog.Input(),
        either: int | str = 3,
    ) -> cog.ConcatenateIterator[str]:
        yield "a"


class Async(cog.BaseRunner):
    @cog.concurrent(max=3)
    async def run(self, options: Annotated[Answer, cog.Opaque]) -> Answer: ...


class Stream(cog.BaseRunner):
    @cog.streaming()
    async def run(self, n: int) -> cog.AsyncConcatenateIterator[str]:
        yield "a"


class Files(cog.BaseRunner):
    def run(self, n: int) -> Iterator[cog.Path]: ...


def lines(a: str = "x") -> list[cog.Path]: ...


SAY_NONE = ("mask",)  # which cog's own inspector cannot tell from what says nothing
EVERY = [Many, Async, Stream, Files, lines]


@pytest.mark.parametrize("target", EVERY)
def test_inputs_and_output_are_described_as_cog_would(target):
    theirs = inspector.create_predictor(__name__, target.__name__)
    schemas = document(read(target))["components"]["schemas"]

    for name, field in theirs.inputs.items():
        assert schemas["Input"]["properties"][name] == _described(name, field)
        is_optional = field.default is not None or field.type.repetition.name.startswith("OPTIONAL")
        assert (name in schemas["Input"].get("required", [])) is not is_optional
    assert schemas["Output"] == theirs.output.json_type()


def _described(name: str, field: Any) -> dict[str, Any]:
    schema = {"x-order": field.order}
    if field.choices:
        schema["allOf"] = [{"$ref": f"#/components/schemas/{name}"}]
    else:
        schema |= {"title": name.title()} | field.type.json_type()
    if field.type.repetition.name.startswith("OPTIONAL"):
        schema["nullable"] = True
    limits = {
        "ge": "minimum",
        "le": "maximum",
        "min_length": "minLength",
        "max_length": "maxLength",
        "regex": "pattern",
    }
    if name in SAY_NONE:
        schema["default"] = None
    for ours in ("default", "description", "deprecated", *limits):
        if (said := getattr(field, ours)) is not None:
            schema[limits.get(ours, ours)] = said
    return schema


def test_decorators_of_cog_are_seen():
    def declared(signature: Signature) -> tuple[bool, int | None, bool]:
        return (signature.is_streaming, signature.concurrency, signature.is_async)

    assert [declared(read(target)) for target in EVERY] == [
        (True, None, False), (False, 3, True), (True, None, True), (False, None, False), (False, None, False)
    ]  # fmt: skip


def test_inputs_are_of_cogs_own_types(tmp_path):
    given = {"prompt": "a", "image": "data:,x", "file": "data:,y", "seed": 1, "key": "hunter2", "options": {}}

    with Inputs(read(Many), str(tmp_path)) as inputs:
        values = inputs.prepare(given)

        assert (type(values["image"]), values["image"].read_text()) == (cog.Path, "x")
        assert (type(values["key"]), values["key"].get_secret_value()) == (cog.Secret, "hunter2")
        assert values["file"].read() == b"y"


def test_whether_none_is_a_default_or_there_is_none_is_read_in_the_source():
    unknown = cog.Input()

    def run(
        a: cog.Secret = cog.Input(default=None),
        b: cog.Secret = cog.Input(None),
        c: cog.Secret = cog.Input(),
        d: cog.Secret = unknown,
        e: Optional[str] = cog.Input(default=None),
        f: Optional[str] = cog.Input(),
        g: int = cog.Input(default=None),
        *,
        h: Optional[int] = cog.Input(description="h", default=None),
    ) -> str: ...

    inputs = document(read(run))["components"]["schemas"]["Input"]

    assert inputs["required"] == ["c", "g"]
    assert [name for name, schema in inputs["properties"].items() if "default" in schema] == list("abdeh")


def test_outputs_of_cogs_types_are_sent(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")

    chunk = encode(Answer("yes", 1.0, cog.Path(tmp_path / "a.png")), 0, str(tmp_path))

    assert chunk.output == {"text": "yes", "score": 1.0, "image": None}
    assert chunk.files == [FileRef(["image"], "a.png", "image/png")]
