"""A registry: the pull part of the OCI distribution API, version 2.

Invariants: every wait ends with the pull's deadline; a blob that was cut goes on where it was cut; after 429 and 5xx
the registry is asked again when Retry-After says so, or after a jittered pause; it counts as down after ``patience``
tries without a byte of progress.
"""

from __future__ import annotations

import contextlib
import email.utils
import ipaddress
import math
import ssl
import time
from collections.abc import Generator, Iterator, Mapping
from urllib.parse import urlsplit

import httpx

from rollart_hpc.images.authorization import authorize
from rollart_hpc.images.credentials import Login
from rollart_hpc.images.deadline import Deadline, jittered_s
from rollart_hpc.images.manifest import ACCEPTED, MAX_MANIFEST_BYTES, Descriptor
from rollart_hpc.images.reference import DOCKER_HUB
from rollart_hpc.images.source import MissingError, SourceDownError

_CONNECT_S = 10.0
_SILENCE_S = 30.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 15.0
_OK, _PARTIAL, _UNAUTHORIZED = 200, 206, 401
_AGAIN = (408, 425, 429)
_REFUSED = {
    401: "wants a login, or there is no such image",
    403: "refuses it",
    404: "has no such image",
    410: "no longer has it",
}
_UNANSWERED = (httpx.RequestError, httpx.InvalidURL, UnicodeError)
"""The last two of names, also of those that answers send to, which cannot be looked up."""


def registry_url(host: str) -> str:
    """Where a registry is reached: https, but on this machine."""
    if host == DOCKER_HUB:
        return "https://registry-1.docker.io"
    return f"{'http' if _is_loopback(urlsplit(f'//{host}').hostname or '') else 'https'}://{host}"


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Registry:
    """One repository of a registry.

    Args:
        url: of the registry, without ``/v2``.
        repository: within it.
        login: ours there, or None.
        deadline: of the pull.
        patience: tries in a row that get nothing before the registry counts as down.
        longest_wait_s: that it may ask for by Retry-After before it counts as down.
    """

    def __init__(
        self,
        url: str,
        repository: str,
        *,
        login: Login | None,
        deadline: Deadline,
        patience: int = 6,
        longest_wait_s: float = math.inf,
    ) -> None:
        self._url, self._repository, self._login = url.rstrip("/"), repository, login
        self._deadline, self._patience, self._longest_wait_s = deadline, patience, longest_wait_s
        self._authorization = ""
        self._client = httpx.Client(
            verify=_certificates() if self._url.startswith("https://") else True,
            follow_redirects=True,  # blobs are often elsewhere; the login does not go there with us
            headers={"User-Agent": "rollart-hpc", "Accept-Encoding": "identity"},
        )

    @property
    def name(self) -> str:
        """As users know it."""
        return self._url

    def manifest(self, wanted: str) -> bytes:
        """A manifest or an index by tag or digest."""
        tries = 0
        while True:
            try:
                with self._open(f"manifests/{wanted}", {"Accept": ", ".join(ACCEPTED)}) as response:
                    body = self._in_time(response, f"the manifest {wanted} was on its way")
                    data = b"".join(_at_most(body, MAX_MANIFEST_BYTES))
                if len(data) <= MAX_MANIFEST_BYTES:
                    return data
                raise MissingError(f"{self._url}: the manifest {wanted} has over {MAX_MANIFEST_BYTES} bytes")
            except _UNANSWERED as error:
                tries += 1
                self._pause(tries, SourceDownError(f"{self._url}: {_text(error)}"))

    def blob(self, descriptor: Descriptor, offset: int) -> Generator[bytes]:
        """The bytes from ``offset`` on, over as many connections as it takes."""
        at, tries = offset, 0
        while at < descriptor.size:
            begun, why = at, "the answer ended"
            try:
                headers = {"Range": f"bytes={at}-"} if at else {}
                with self._open(f"blobs/{descriptor.digest}", headers) as response:
                    body = self._in_time(response, f"{descriptor.digest} was on its way")
                    for chunk in _from(body, 0 if response.status_code == _PARTIAL else at):
                        at += len(chunk)
                        yield chunk
            except _UNANSWERED as error:
                why = _text(error)
            tries = 0 if at > begun else tries + 1
            if at < descriptor.size:
                failure = f"{self._url}: {why} after {at} of {descriptor.size} bytes of {descriptor.digest}"
                self._pause(tries, SourceDownError(failure))

    def discard(self, digest: str) -> None:
        """Nothing can be done about it here."""

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    @contextlib.contextmanager
    def _open(self, path: str, headers: Mapping[str, str]) -> Generator[httpx.Response]:
        """A good answer whose body is still to be read; asks again until there is one."""
        tries = 0
        while True:
            with self._ask(path, headers) as response:
                if response.status_code in (_OK, _PARTIAL):
                    yield response
                    return
                failure, pause_s = self._refusal(path, response), _retry_after_s(response)
            tries += 1
            self._pause(tries, failure, pause_s)

    @contextlib.contextmanager
    def _ask(self, path: str, headers: Mapping[str, str]) -> Generator[httpx.Response]:
        url = f"{self._url}/v2/{self._repository}/{path}"
        for last in (False, True):
            if not self._deadline.left_s():
                raise self._late("the registry was to be asked")
            own = {**headers, "Authorization": self._authorization} if self._authorization else headers
            bounds = httpx.Timeout(self._deadline.bounded(_SILENCE_S), connect=self._deadline.bounded(_CONNECT_S))
            with self._client.stream("GET", url, headers=own, timeout=bounds) as response:
                challenges = response.headers.get_list("www-authenticate")
                if response.status_code != _UNAUTHORIZED or not challenges or last:
                    yield response
                    return
            scope = f"repository:{self._repository}:pull"
            self._authorization = authorize(self._client, challenges, url=self._url, scope=scope, login=self._login)

    def _refusal(self, path: str, response: httpx.Response) -> SourceDownError:
        """The failure that an answer is, when asking again may help.

        Raises:
            MissingError: it will not help.
        """
        status = response.status_code
        what = f"{self._url} answered {status} for {self._repository}, {path}"
        if status >= 500 or status in _AGAIN:
            return SourceDownError(what)
        raise MissingError(f"{what}: it {_REFUSED.get(status, 'does not serve it so')}")

    def _pause(self, tries: int, failure: SourceDownError, pause_s: float | None = None) -> None:
        """Waits before the next try.

        Raises:
            SourceDownError: it was the last one.
        """
        jittered = jittered_s(tries, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
        asked_s = pause_s or 0.0
        if tries >= self._patience or asked_s > self._longest_wait_s or not self._deadline.sleep(asked_s + jittered):
            raise failure

    def _in_time(self, response: httpx.Response, when: str) -> Iterator[bytes]:
        """The body as it comes: gathered to larger pieces it is lost with the connection, and hides that it trickles.

        Raises:
            SourceDownError: the deadline passed.
        """
        for chunk in response.iter_raw():
            yield chunk
            if not self._deadline.left_s():
                raise self._late(when)

    def _late(self, when: str) -> SourceDownError:
        return SourceDownError(
            f"{self._url}: {self._deadline.timeout_s:g} s were over when {when}; raise images.pull_timeout_s"
        )


def _from(chunks: Iterator[bytes], skip: int) -> Iterator[bytes]:
    """All but the first bytes: a server may ignore the range and send a blob whole."""
    for chunk in chunks:
        if skip >= len(chunk):
            skip -= len(chunk)
        else:
            yield chunk[skip:]
            skip = 0


def _at_most(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The chunks up to the one that passes the size."""
    for chunk in chunks:
        yield chunk
        size -= len(chunk)
        if size < 0:
            return


def _retry_after_s(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _certificates() -> ssl.SSLContext:
    """Those that this machine trusts, and those that ship with Python's packages: nodes may lack either."""
    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
