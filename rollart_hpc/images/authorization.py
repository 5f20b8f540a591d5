"""How a registry is told who asks: the token protocol of the distribution specification, or basic authentication.

A password goes to the registry itself, or to the token service that it names; never over plain http, unless the
registry itself is reached so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import httpx
import msgspec

from rollart_hpc.images.credentials import Login
from rollart_hpc.images.source import MissingError, SourceDownError

_CHALLENGE = re.compile(r'(Bearer|Basic)\s+((?:\w+=(?:"[^"]*"|[^\s,]+)(?:\s*,\s*)?)+)', re.IGNORECASE)
_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,]+))')
_CLIENT = "rollart-hpc"


class _Token(msgspec.Struct, frozen=True, kw_only=True):
    token: str = ""
    access_token: str = ""


def authorize(client: httpx.Client, challenges: Sequence[str], *, url: str, scope: str, login: Login | None) -> str:
    """The value of the Authorization header that answers a 401.

    Args:
        client: to ask the token service with.
        challenges: the values of WWW-Authenticate.
        url: of the registry.
        scope: what is asked for, where the challenge does not say it.
        login: ours; None asks as anybody.

    Raises:
        MissingError: the registry does not want us.
        SourceDownError: its token service does not answer.
    """
    parsed = [found for text in challenges for found in _CHALLENGE.finditer(text)]
    bearer = next((one for one in parsed if one[1].lower() == "bearer"), None)
    if bearer is None:
        if login is None or not any(text.lower().startswith("basic") for text in challenges):
            raise MissingError(f"{url} wants a login; put one into the file of images.credentials")
        return login.basic
    asked = {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(bearer[2])}
    realm = asked.get("realm", "")
    if not realm.startswith("https://") and not url.startswith("http://"):
        raise MissingError(f"{url} names the token service {realm!r}, to which nothing is said over plain http")
    question = {"service": asked.get("service", ""), "scope": asked.get("scope") or scope}
    return f"Bearer {_ask(client, realm, question, login)}"


def _ask(client: httpx.Client, realm: str, question: dict[str, str], login: Login | None) -> str:
    try:
        if login is not None and login.identity_token:
            form = {"grant_type": "refresh_token", "client_id": _CLIENT, "refresh_token": login.identity_token}
            response = client.post(realm, data={**question, **form})
        else:
            headers = {"Authorization": login.basic} if login else {}
            response = client.get(realm, params=question, headers=headers)
    except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
        raise SourceDownError(f"token service {realm}: {error}") from error
    if response.status_code in (400, 401, 403, 404):
        raise MissingError(
            f"token service {realm} refuses {'this login' if login else 'requests without a login'} "
            f"({response.status_code}); look at the file of images.credentials"
        )
    try:
        answer = msgspec.json.decode(response.content, type=_Token) if response.is_success else _Token()
    except msgspec.DecodeError:
        answer = _Token()
    if token := answer.token or answer.access_token:
        return token
    raise SourceDownError(f"token service {realm} answered {response.status_code} and no token")
