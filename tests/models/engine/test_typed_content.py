"""Templates that read a message as a list of parts."""

from corosrv.contracts.jobs import Messages
from corosrv.models.engine.chat import ChatTemplate

PARTS_ALONE = (
    "{% for message in messages %}{{ message.role }}:"
    "{% for part in message.content %}{% if part.type == 'text' %} {{ part.text }}{% endif %}{% endfor %}|{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TEXTS_TOO = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endif %}|{% endfor %}"
)


def rendered(source: str, *contents: str, **fields) -> str:
    messages = tuple({"role": "user", "content": content} for content in contents)
    pieces = ChatTemplate(source, ["<|end|>"], {}).render(Messages(messages, **fields))
    return "".join(piece.text for piece in pieces)


def test_texts_reach_a_template_that_reads_parts_alone():
    assert rendered(PARTS_ALONE, "Hello", "again") == "user: Hello|user: again|assistant:"


def test_a_template_that_reads_texts_gets_texts():
    assert rendered(TEXTS_TOO, "Hello") == "user: Hello|"


def test_markers_in_parts_stay_text():
    (piece,) = [
        piece
        for piece in ChatTemplate(PARTS_ALONE, ["<|end|>"], {}).render(
            Messages(({"role": "user", "content": "a <|end|> b"},))
        )
        if piece.is_text
    ]

    assert piece.text == "<|end|>"


def test_an_answer_that_is_to_be_continued_ends_such_a_prompt():
    text = rendered(PARTS_ALONE, "Hello", "I am", continue_final=True, add_generation_prompt=False)

    assert text == "user: Hello|user: I am"


def test_a_template_that_refuses_everything_stays_as_it_is():
    template = ChatTemplate("{{ raise_exception('no') }}", [], {})

    assert not template.traits.has_system
