"""The headers by which a request names its group."""

import pytest

from corosrv.base.errors import Refused
from corosrv.web.groups import MAX_NAME, group_of


@pytest.mark.parametrize(
    ("header", "group"), [(None, ""), ("step-1/7", "step-1/7"), ("  g  ", "g"), ("x" * MAX_NAME,) * 2]
)
def test_a_group_is_named_by_its_header(header, group):
    assert group_of({} if header is None else {"HTTP_X_GROUP_ID": header}) == group


@pytest.mark.parametrize("header", ["", "  ", "a b", "x" * (MAX_NAME + 1), "caf\xe9", "a\tb"])
def test_a_name_that_is_none_is_refused(header):
    with pytest.raises(Refused, match="X-Group-Id"):
        group_of({"HTTP_X_GROUP_ID": header})
