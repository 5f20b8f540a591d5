"""Logins of registries, from a file in the format of ``~/.docker/config.json``."""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from rollart_hpc.errors import ImageError
from rollart_hpc.images.reference import DOCKER_HUB

_HELPER_DEADLINE_S = 20.0
_TOKEN_USER = "<token>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to say who we are; either a password or an identity token."""

    username: str = ""
    password: str = ""
    identity_token: str = ""

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def __repr__(self) -> str:
        return f"Login({self.username!r})"


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _File(msgspec.Struct, frozen=True, kw_only=True, rename={"helper": "credsStore", "helpers": "credHelpers"}):
    auths: dict[str, _Entry] = {}
    helper: str = ""
    helpers: dict[str, str] = {}


class Credentials:
    """The logins of one file."""

    def __init__(self, content: _File, source: str) -> None:
        self._content, self._source = content, source

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Those of a file; none at all without one.

        Raises:
            ImageError: the file cannot be read or is of another format; not retryable.
        """
        if path is None:
            return cls(_File(), "")
        try:
            return cls(msgspec.json.decode(path.expanduser().read_bytes(), type=_File), str(path))
        except (OSError, msgspec.DecodeError, RuntimeError) as error:
            raise ImageError(
                f"images.credentials = {str(path)!r}: {error}; give a file as `docker login` writes it", retryable=False
            ) from error

    def of(self, registry: str) -> Login | None:
        """The login of a registry's host; None where it has none.

        Raises:
            ImageError: the file's entry is broken or its helper fails; not retryable.
        """
        for key in _keys(registry):
            if helper := self._content.helpers.get(key):
                return self._ask(helper, key)
            if entry := self._content.auths.get(key):
                return self._ask(self._content.helper, key) if self._content.helper else self._read(entry, key)
        return None

    def _read(self, entry: _Entry, key: str) -> Login:
        username, password = entry.username, entry.password
        if entry.auth:
            try:
                username, _, password = base64.b64decode(entry.auth).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError) as error:
                raise self._wrong(key, "its auth is not base64 of USER:PASSWORD; log in again") from error
        return Login(username=username, password=password.rstrip("\0"), identity_token=entry.identitytoken)

    def _ask(self, helper: str, key: str) -> Login:
        program = f"docker-credential-{helper}"
        try:
            done = subprocess.run(
                [program, "get"], input=key, capture_output=True, text=True, timeout=_HELPER_DEADLINE_S, check=True
            )
            answer = json.loads(done.stdout)
            user, secret = str(answer["Username"]), str(answer["Secret"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            raise self._wrong(key, f"{program} gives no login ({type(error).__name__}); log in again") from error
        return Login(identity_token=secret) if user == _TOKEN_USER else Login(username=user, password=secret)

    def _wrong(self, key: str, why: str) -> ImageError:
        return ImageError(f"images.credentials = {self._source!r}: {key}: {why}", retryable=False)


def _keys(registry: str) -> tuple[str, ...]:
    """Under which names `docker login` may have written a registry."""
    hosts = ("index.docker.io", DOCKER_HUB, "registry-1.docker.io") if registry == DOCKER_HUB else (registry,)
    forms = ("{}", "https://{}", "https://{}/v1/", "https://{}/v2/", "http://{}")
    return tuple(form.format(host) for host in hosts for form in forms)
