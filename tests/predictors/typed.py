"""A predictor with inputs and outputs of every kind."""

import math
from enum import Enum

from corosrv.worker import BaseModel, BaseRunner, File, Input, Path, Secret


class Style(str, Enum):
    PLAIN = "plain"
    BOLD = "bold"


class Answer(BaseModel):
    text: str
    image: Path
    pages: list[Path]
    more: dict[str, float | None]


class Runner(BaseRunner):
    def run(
        self,
        image: Path,
        notes: list[Path] = Input(default=[]),
        file: File | None = None,
        key: Secret = Input(default="default key"),
        style: Style = Style.PLAIN,
        scale: float = Input(default=1, ge=0, le=10),
        count: int | None = None,
        tag: str = Input(default="ab", regex="^(a+|b)+$"),
    ) -> Answer:
        read = [image.read_text(), *(note.read_text() for note in notes), file.read().decode() if file else "-"]
        said = [*read, key.get_secret_value(), style.name, repr(scale), repr(count), tag]
        return Answer(" ".join(said), image, [image, image], {"score": math.nan})
