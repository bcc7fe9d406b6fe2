"""The reference page is what the docstrings say, and has every name that authors import."""

from __future__ import annotations

import corosrv.worker
from tests.web.docs import reference


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert reference.PAGE.read_text() == reference.page(), "write it again: python -m tests.web.docs.reference"


def test_every_name_that_authors_import_is_explained() -> None:
    names = {name for topic in reference.TOPICS.values() for name in topic.split()}

    assert names == {*corosrv.worker.__all__, "Objects"}
    assert [name for name in sorted(names) if not reference.object_of(name).__doc__] == []
