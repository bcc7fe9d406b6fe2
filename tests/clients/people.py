"""What the clients' tests ask for, in every client's own way."""

from __future__ import annotations

from pydantic import BaseModel

QUESTION = "What is 2+2?"  # SmolLM2, left to itself, answers in twelve tokens
PERSON = "Ann is 31 years old. Who is she?"


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


class Weather(BaseModel):
    """The arguments of a call, as its schema has them."""

    model_config = {"extra": "forbid"}

    city: str
    unit: str
