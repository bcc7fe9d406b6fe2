"""Functions whose types say what they take and give: corosrv serve deploy/app/typed.py:app

curl http://127.0.0.1:8080/v2/models/scale/infer -d '{"inputs": [
  {"name": "numbers", "datatype": "FP64", "shape": [3], "data": [1, 2, 3]},
  {"name": "factor", "datatype": "FP64", "shape": [1], "data": [10]}]}'
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypedDict

from msgspec import Meta, Struct

from corosrv.worker import App, Context, InvalidInput

app = App("typed")


@app.model("scale")
def scale(numbers: list[float], factor: float = 2.0) -> list[float]:
    """Multiplies numbers; a client may leave the factor out."""
    return [number * factor for number in numbers]


class Order(Struct):
    """One line of an order: clients send it as JSON."""

    item: str
    price: float
    count: Annotated[int, Meta(ge=1)] = 1


class Bill(TypedDict):
    """Names the outputs of `bill`."""

    total: float
    items: list[str]


@app.model("bill")
def bill(orders: list[Order], context: Context) -> Bill:
    """Adds up orders."""
    if not orders:
        raise InvalidInput("there is nothing to pay for")
    context.log.info("%d orders", len(orders))
    return {"total": sum(order.price * order.count for order in orders), "items": [order.item for order in orders]}


@app.model("outer")
def outer_product(a: list[float], b: list[float]) -> list[list[float]]:
    """Multiplies each number of one list by each of the other: nested lists are a tensor of two dimensions."""
    return [[x * y for y in b] for x in a]


@app.model("shout")
def shout(text_input: str) -> Iterator[str]:
    """Streams a text in capitals: from `text_input: str` to str, a function is a model for /generate, too."""
    for word in text_input.split():
        yield f"{word.upper()} "
