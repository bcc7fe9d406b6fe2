"""Settings of a server: what may be said, and the lists that they hold."""

from pathlib import Path

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts.settings import ServerSettings


def test_comma_lists_drop_blanks():
    chosen = ServerSettings(api_keys=" k1 ,,k2", cors_origins="https://a.example, localhost", allowed_hosts="a.b,")

    assert chosen.keys == ("k1", "k2")
    assert chosen.origins == ("https://a.example", "localhost")
    assert chosen.hosts == ("a.b",)


@pytest.mark.parametrize(("name", "value"), [("slot_save_path", "/nowhere"), ("body_timeout_s", 0)])
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(SettingsError, match=f"^COROSRV_{name.upper()} must be"):
        ServerSettings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gateway_from", "10.0.0.1/8"), ("gateway_from", "gateway.example"), ("objectives", "batch"),
        ("objectives", "batch=low"), ("objectives", "=1"), ("objectives", "a=1,a=2"),
        ("objectives", "a=1,b=2,c=3,d=4,e=5"), ("objectives", "a=-1,b=-2,c=-3,d=-4,e=-5"),
    ],
)  # fmt: skip
def test_what_says_nothing_of_a_gateway_is_refused_by_name(name, value):
    with pytest.raises(SettingsError, match=f"^COROSRV_{name.upper()} must be"):
        ServerSettings(**{name: value})


def test_objectives_have_priorities_by_name():
    chosen = ServerSettings(gateway_from="10.0.0.0/8, ::1,*", objectives="premium=10, batch=-10,a=1,b=2,c=3,d=10")

    assert chosen.gateway_networks == ("10.0.0.0/8", "::1", "*")
    assert chosen.objective_priorities == {"premium": 10, "batch": -10, "a": 1, "b": 2, "c": 3, "d": 10}


KEY = "whsec_" + "QUJD" * 8
MALFORMED = (
    "QUJD" * 8,
    "whsec_QUJD",
    "whsec_" + "QUJD" * 30,
    KEY + "!",
    f"{KEY},whsec_",
    "whsec_geh\u00efm" + "QUJD" * 8,
)


def test_secrets_of_webhooks_come_from_a_variable_and_from_a_file(tmp_path: Path):
    file = tmp_path / "secrets"
    file.write_text("\n".join(["whsec_" + "QUJE" * 8, "", "whsec_" + "QUJF" * 8]))

    chosen = ServerSettings(webhook_secret=KEY, webhook_secret_file=str(file))

    assert chosen.webhook_secrets.split() == [KEY, "whsec_" + "QUJE" * 8, "whsec_" + "QUJF" * 8]
    assert ServerSettings().webhook_secrets == ""


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_secret_of_webhooks_stops_the_start_and_is_not_shown(tmp_path: Path, text: str):
    file = tmp_path / "secrets"
    file.write_text(text)

    for name, value in (("webhook_secret", text), ("webhook_secret_file", str(file))):
        with pytest.raises(SettingsError, match=f"COROSRV_{name.upper()} must be whsec_ and base64") as refused:
            ServerSettings(**{name: value})
        assert "QUJD" not in str(refused.value)


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), ("\n", "has no secret in it")])
def test_a_file_without_secrets_of_webhooks_stops_the_start(tmp_path: Path, content: str | None, words: str):
    file = tmp_path / "secrets"
    if content is not None:
        file.write_text(content)

    with pytest.raises(SettingsError, match=f"COROSRV_WEBHOOK_SECRET_FILE {words}"):
        ServerSettings(webhook_secret_file=str(file))


def test_a_url_of_webhooks_needs_a_secret():
    with pytest.raises(SettingsError, match="COROSRV_RESPONSE_WEBHOOK_URL needs COROSRV_WEBHOOK_SECRET"):
        ServerSettings(response_webhook_url="https://example.com")
    with pytest.raises(SettingsError, match="COROSRV_RESPONSE_WEBHOOK_URL must be an http"):
        ServerSettings(response_webhook_url="example.com", webhook_secret=KEY)
