"""Remembers how many tokens images of each size become, and asks the encoder of a model for what is not known."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from corosrv.contracts.jobs import Image

MOST_SIZES = 4096  # that are remembered

Size = tuple[int, int]  # width and height in pixels
Wake = Callable[[], None]


class ImageSizes:
    """The tokens of each size, for which the encoder is asked once.

    Belongs to the thread of one hub; nothing of it waits.
    """

    def __init__(self, ask: Callable[[Size], bool]) -> None:
        """`ask` sends a question to the encoder, and returns False where none is up."""
        self._ask = ask
        self._known: OrderedDict[Size, int] = OrderedDict()
        self._asked: dict[Size, list[Wake]] = {}

    @property
    def is_asked(self) -> bool:
        """Returns whether the encoder has a question that it has not answered."""
        return bool(self._asked)

    def n_tokens(self, image: Image, wake: Wake) -> int | None:
        """Returns how many tokens an image becomes; 0 where nobody can tell before it is encoded.

        None: the encoder was asked. `wake` is called when it has answered, or has ended.
        """
        size = image.width, image.height
        if (known := self._known.get(size)) is not None:
            self._known.move_to_end(size)
            return known
        if size not in self._asked:
            if not self._ask(size):
                return 0
            self._asked[size] = []
        self._asked[size].append(wake)
        return None

    def answer(self, size: Size, n_tokens: int) -> None:
        """Takes an answer of the encoder."""
        self._known[size] = n_tokens
        if len(self._known) > MOST_SIZES:
            self._known.popitem(last=False)
        for wake in self._asked.pop(size, ()):
            wake()

    def encoder_down(self) -> None:
        """Answers what the encoder that has ended was asked: nobody can tell. It may have died of it."""
        for size in list(self._asked):
            self.answer(size, 0)
