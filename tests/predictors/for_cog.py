"""As its author wrote it for Cog."""
# ruff: noqa: UP028

from collections.abc import Iterator

from cog import (
    BaseModel,
    BasePredictor,
    CancelationException,
    ConcatenateIterator,
    Input,
    Path,
    Secret,
    current_scope,
)
from cog.coder import Coder


class Output(BaseModel):
    text: str
    file: Path | None


class Predictor(BasePredictor):
    def setup(self):
        print("cog's own setup")

    def predict(
        self,
        word: str = Input(description="What to say", default="hi", max_length=10),
        times: int = Input(ge=1, le=5, default=1),
        secret: Secret = Input(default=None),
        context: str = "",
    ) -> Output:
        self.record_metric("words", times)
        current_scope().metrics["asked.for"] = word
        print(secret, current_scope().context)
        made = Path("made.txt")
        made.write_text(word)
        return Output(text=word * times, file=made)


class Spins(BasePredictor):
    def run(self) -> str:
        try:
            print("spinning")
            while True:
                pass
        except CancelationException:
            print("cancelled")
            raise


class Streams(BasePredictor):
    def run(self, parts: list[str]) -> ConcatenateIterator[str]:
        for part in parts:
            yield part


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y


class PointCoder(Coder):
    @staticmethod
    def factory(kind):
        return PointCoder() if kind is Point else None

    def encode(self, point):
        return {"at": [point.x, point.y]}

    def decode(self, given):
        return Point(*given["at"])


class Moves(BasePredictor):
    def run(self, by: Point, start: Point = Point(1, 1), others: list[Point] | None = None) -> list[Point]:  # noqa: B008
        return [Point(point.x + by.x, point.y + by.y) for point in [start, *(others or [])]]


def function(word: str) -> Iterator[str]:
    yield word
