"""Settings of a server: what may be said, and the lists that they hold."""

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import ServerSettings


def test_comma_lists_drop_blanks():
    chosen = ServerSettings(api_keys=" k1 ,,k2", cors_origins="https://a.example, localhost", allowed_hosts="a.b,")

    assert chosen.keys == ("k1", "k2")
    assert chosen.origins == ("https://a.example", "localhost")
    assert chosen.hosts == ("a.b",)


@pytest.mark.parametrize(("name", "value"), [("temp", -0.1), ("slot_save_path", "/nowhere"), ("body_timeout_s", 0)])
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(SettingsError, match=f"^COROSRV_{name.upper()} must be"):
        ServerSettings(**{name: value})
