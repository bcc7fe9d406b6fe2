import base64
import os
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corosrv.workers.worker.values.addresses import MAX_NAME, DataUrl, file_name, is_address, web_name


@pytest.mark.parametrize(
    "address",
    ["http://a/b.png", "HTTPS://user:word@example.com:8080/?q=1#x", "http://[::1]/a", "data:,x", "DATA:;base64,"],
)
def test_web_and_data_urls_are_taken(address):
    assert is_address(address)


@pytest.mark.parametrize(
    "address",
    ["", "/etc/passwd", "etc/passwd,x", "file:///etc/passwd", "FILE:/etc/passwd", "ftp://a/b", "http://", "http:///a",
     "http:/a", "https://a b/", "http://a/\n", " http://a/", "http://a:x/", "http://a:99999/", "http://[::1/", "data:",
     "http://:80/", "javascript:1", "http://a/\0"],
)  # fmt: skip
def test_everything_else_is_refused(address):
    assert not is_address(address)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://a/dir/cat.png?size=1.gif#top", "cat.png"),
        ("https://a/my%20cat.png", "my cat.png"),
        ("https://a", "file"),
        ("https://a/dir/", "file"),
        ("https://a/..", "file"),
        ("https://a/%2e%2e", "file"),
        ("https://a/..%2F..%2Fetc%2Fpasswd", ".._.._etc_passwd"),
        ("https://a/x%00.png", "x_.png"),
        ("https://a/x%0A.png", "x_.png"),
        ("https://a/%ff.png", "\ufffd.png"),
    ],
)
def test_a_download_is_named_by_the_urls_last_part(url, name):
    assert web_name(url) == name


def test_a_long_name_keeps_its_ending():
    assert file_name("ä" * 10_000 + ".png") == "ä" * 98 + ".png"
    assert len(file_name("x." + "y" * 10_000).encode()) == MAX_NAME


@settings(deadline=None)
@given(st.text(), st.text())
def test_no_name_leaves_its_directory(tmp_path_factory, start, path):
    directory = str(tmp_path_factory.getbasetemp())

    for name in (file_name(path), web_name(f"https://{quote(start)}/" + quote(path, safe="/%"))):
        whole = os.path.join(directory, name)
        assert os.path.dirname(os.path.normpath(whole)) == directory
        assert 0 < len(os.fsencode(name)) <= MAX_NAME
        assert not os.path.lexists(whole) or os.path.isfile(whole)  # the system takes the name


@settings(deadline=None)
@given(st.binary(), st.booleans())
def test_a_data_url_gives_back_what_was_put_in(content, is_base64):
    coded = ";base64," + quote(base64.b64encode(content)) if is_base64 else "," + quote(content)

    assert DataUrl.parse(f"data:image/png{coded}") == DataUrl("image/png", content)


@pytest.mark.parametrize(
    ("url", "name", "content"),
    [
        ("data:,a%20b", "file.txt", b"a b"),
        ("data:image/png;base64,YWJj", "file.png", b"abc"),
        ("DATA:Image/JPEG;BASE64,YWJj", "file.jpg", b"abc"),
        ("data:text/plain;charset=utf-8;base64,YQ", "file.txt", b"a"),
        ("data:application/x-unheard-of,", "file", b""),
        ("data:../../etc;base64,YQ==", "file", b"a"),
        ("data:base64,YQ==", "file.txt", b"YQ=="),
        ("data:;base64,Y W\nJj", "file.txt", b"abc"),
        ("data:,a,b", "file.txt", b"a,b"),
    ],
)
def test_a_data_url_has_a_name_by_its_type(url, name, content):
    decoded = DataUrl.parse(url)

    assert (decoded.name, decoded.content) == (name, content)


@pytest.mark.parametrize("data", ["!", "a", "YQ=", "YQ===", "Y=Q=", "YWJj=", "-_-_", "YQ==YQ==", "ä", "YWJ%"])
def test_broken_base64_is_no_empty_file(data):
    with pytest.raises(ValueError, match="broken base64"):
        DataUrl.parse(f"data:;base64,{data}")
