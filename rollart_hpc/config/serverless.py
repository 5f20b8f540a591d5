"""Serverless endpoints: where a declared URL is served, and how it is called.

Secrets are never in a config: it names the environment variables that hold them, which this module alone reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rollart_hpc.config.section import Line, PositiveFloat, PositiveInt, Section
from rollart_hpc.errors import ConfigError

HTTP = ("http://", "https://")
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]


class ServerlessSection(Section):
    """One endpoint of a serverless function."""

    url: Line
    """Its HTTP trigger."""
    bearer_env: VariableName | None = None
    """Environment variable whose value is sent as a bearer token."""
    secret_env: VariableName | None = None
    """Environment variable whose value signs every request (`rollart_hpc.rewards.signature`)."""
    attempt_timeout_s: PositiveFloat = 10.0
    """One request, the wait for a connection included."""
    fallback_after_s: PositiveFloat = 1.2
    """A reward goes to the local pool when it has waited so long and the endpoint has given nobody a result in the
    second half of that time: raise it above the function's usual time where few calls are made at once."""
    hedge_after_s: PositiveFloat | None = None
    """A request without an answer for so long gets a second one beside it; the first answer counts."""
    max_body_mb: PositiveFloat = 32.0
    """Larger requests are not sent. 32 is Function Compute's limit, 6 that of AWS Lambda."""
    max_concurrent: PositiveInt = 256
    """Requests of one worker at the same time; the others wait for their turn."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if fault := url_fault(value):
            raise ValueError(f"got {value!r}, {fault}")
        return value

    @property
    def max_body_bytes(self) -> int:
        """``max_body_mb`` in bytes."""
        return int(self.max_body_mb * (1 << 20))

    def bearer(self) -> str | None:
        """The token, where one is named.

        Raises:
            ConfigError: the variable is not set.
        """
        return _secret(self.bearer_env, "bearer_env")

    def secret(self) -> str | None:
        """The key of the signatures, where one is named.

        Raises:
            ConfigError: the variable is not set.
        """
        return _secret(self.secret_env, "secret_env")


def _secret(variable: str | None, key: str) -> str | None:
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        raise ConfigError(
            f"{key} = {variable!r}: the environment variable {variable} is {'not set' if value is None else 'empty'}; "
            f"export it before the start (a job gets the environment that it is submitted from), or remove {key}"
        )
    return value


def url_fault(url: str) -> str:
    """What is wrong with a URL that is to be called; empty for one that can be."""
    if not url.startswith(HTTP):
        return "expected an HTTP trigger that begins with http:// or https://"
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0 and not any(map(str.isspace, parts.netloc))
    except ValueError as error:
        return f"expected http://host[:port]/path: {error}"
    return "" if has_host else "expected a host, and a port above 0 where one is named: http://host[:port]/path"


def with_triggers(endpoints: object) -> object:
    """What a user wrote under ``[serverless]`` as tables that all have a URL.

    A text is the URL of the declared one, and a declared URL that is HTTP is its own where a table names none.
    """
    if not isinstance(endpoints, Mapping):
        return endpoints
    tables: dict[object, object] = {}
    for declared, value in cast("Mapping[object, object]", endpoints).items():
        if isinstance(value, ServerlessSection):
            tables[declared] = value
            continue
        table: Any = {"url": value} if isinstance(value, str) else value
        if isinstance(table, Mapping) and "url" not in table and str(declared).startswith(HTTP):
            table = {"url": declared, **table}
        url = cast("Mapping[str, object]", table).get("url") if isinstance(table, Mapping) else None
        if "://" not in str(declared) or not str(url or "").startswith(HTTP):
            raise ValueError(
                f"{declared!r} = {value!r}: expected a declared URL and its HTTP trigger, such as "
                '"fc://score" = "https://host/path", or a table with url = "https://host/path"'
            )
        tables[declared] = table
    return tables


def no_trigger(declared: str) -> str:
    """What to do about a declared URL that is not called as it is."""
    return (
        f"{declared} is called by its HTTP trigger's URL; give that in the config: "
        f'[serverless] "{declared}" = "https://..."'
    )
