"""Logins are read from docker's own file, helpers included."""

import base64
import json
import os
from pathlib import Path

import pytest

from rollart_hpc.errors import ImageError
from rollart_hpc.images.credentials import Credentials, Login


def credentials(directory: Path, content: object) -> Credentials:
    file = directory / "config.json"
    file.write_text(json.dumps(content))
    return Credentials.load(file)


def test_every_way_in_which_a_login_is_written_is_read(tmp_path: Path):
    auth = base64.b64encode(b"me:se:cret").decode()
    found = credentials(
        tmp_path,
        {
            "auths": {
                "https://index.docker.io/v1/": {"auth": auth},
                "ghcr.io": {"username": "you", "password": "x"},
                "https://cloud.example": {"auth": "", "identitytoken": "long"},
            },
            "unknown": 1,
        },
    )
    assert found.of("docker.io") == Login(username="me", password="se:cret")
    assert found.of("ghcr.io") == Login(username="you", password="x")
    assert found.of("cloud.example") == Login(identity_token="long")
    assert found.of("other.example") is None
    assert Credentials.load(None).of("docker.io") is None


def test_a_helper_is_asked_and_nothing_shows_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    helper = tmp_path / "docker-credential-mine"
    helper.write_text(
        '#!/bin/sh\nread server\ntest "$server" = reg.example || exit 1\necho \'{"Username":"me","Secret":"s3"}\'\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = credentials(tmp_path, {"credHelpers": {"reg.example": "mine", "bad.example": "mine"}})
    login = found.of("reg.example")
    assert login == Login(username="me", password="s3")
    assert "s3" not in repr(login)
    with pytest.raises(ImageError, match="docker-credential-mine gives no login") as raised:
        found.of("bad.example")
    assert not raised.value.retryable


@pytest.mark.parametrize("text", ["", "{", '{"auths": []}', '{"auths": {"a": {"auth": 1}}}'])
def test_a_broken_file_is_named(tmp_path: Path, text: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ImageError, match=r"config\.json"):
        Credentials.load(tmp_path / "config.json")
    with pytest.raises(ImageError, match="none"):
        Credentials.load(tmp_path / "none")
