"""The part of a server that serves models: what it refuses before anything starts."""

import pytest

from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.serving.server import Server


def server(**chosen: str) -> Server:
    return Server(settings.load(chosen, environ={}))


def test_a_chat_template_that_is_none_stops_the_start():
    with pytest.raises(SettingsError, match="COROSRV_CHAT_TEMPLATE: 'llama33' is neither"):
        server(model="synthetic:", chat_template="llama33")


def test_a_chat_template_file_that_holds_none_stops_the_start(tmp_path):
    file = tmp_path / "template.txt"
    file.write_text("You are helpful.")

    with pytest.raises(SettingsError, match=r"COROSRV_CHAT_TEMPLATE_FILE: 'You are helpful\.' is neither"):
        server(model="synthetic:", chat_template_file=str(file))


def test_a_model_of_several_has_its_chat_template_checked_too():
    with pytest.raises(SettingsError, match="'llama33' is neither"):
        server(model="a=synthetic:,b=synthetic:?chat_template=llama33")
