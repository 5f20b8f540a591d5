"""A registry in this process, with faults on purpose: for benchmarks and tests of what a bad registry does to a run.

It serves the pull part of the distribution API on a loopback port, so the cache talks to it as to any other: by its
`host` in a reference, or by its `url` as a mirror.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from rollart_hpc.images.blobs import digest_of
from rollart_hpc.images.manifest import DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, node_architecture

_TOKEN = "emulated"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that came, before it was answered."""

    path: str
    """Without ``/v2/``."""
    offset: int = 0
    """Of a blob, from where on it is wanted."""
    tries: int = 1
    """How often this path was asked for until now."""
    authorized: bool = False
    """It came with a header Authorization."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryFault:
    """What goes wrong with one answer."""

    status: int = 0
    """Answered instead of the content; 0 answers the content."""
    retry_after: str = ""
    location: str = ""
    """Where the answer sends to, with a status 307."""
    delay_s: float = 0.0
    cut_after: int | None = None
    """The connection ends after so many bytes of the body."""
    corrupt: bool = False
    """The last byte is another one."""
    ignore_range: bool = False


class EmulatedRegistry:
    """The registry; serves from its start to its `close`.

    Args:
        fault: asked about every request for a manifest or a blob; None for none.
        login: user and password without whose token it gives nothing.
    """

    def __init__(
        self,
        *,
        fault: Callable[[Asked], RegistryFault | None] | None = None,
        login: tuple[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.fault = fault
        self.login = login
        self.asked: list[Asked] = []
        """Every request for a manifest or a blob, in order."""
        self._content: dict[str, tuple[bytes, str]] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        registry = self

        class Handler(_Handler):
            """Of this registry."""

            def answer(self) -> None:
                registry._answer(self)

        self._server = _Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True, name="registry")
        self._thread.start()

    @property
    def host(self) -> str:
        """For references."""
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """For mirrors."""
        return f"http://{self.host}"

    def add_image(
        self,
        repository: str,
        layers: Sequence[bytes],
        *,
        tag: str = "latest",
        config: Mapping[str, Any] | None = None,
        docker: bool = False,
        architecture: str | None = None,
    ) -> str:
        """Puts an image there; gives the digest of its manifest.

        Args:
            repository: its name.
            layers: archives, the lowest first.
            tag: under which it is found, too.
            config: what containers start with, such as ``{"Env": ["A=b"], "WorkingDir": "/testbed"}``.
            docker: docker's media types instead of OCI's.
            architecture: for which it says to be; this machine's when absent.
        """
        about = {"architecture": architecture or node_architecture(), "os": "linux", "config": dict(config or {})}
        manifest = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST if docker else OCI_MANIFEST,
            "config": self._add_blob(repository, json.dumps(about).encode(), _CONFIG_TYPE),
            "layers": [self._add_blob(repository, layer, _LAYER_TYPE) for layer in layers],
        }
        return self.add_manifest(repository, manifest, tag=tag)

    def add_index(self, repository: str, digests: Mapping[str, str], *, tag: str, docker: bool = False) -> str:
        """Puts an index of images there, by architecture; gives its digest."""
        entries = [
            {
                "mediaType": DOCKER_MANIFEST if docker else OCI_MANIFEST,
                "digest": digest,
                "size": len(self._content[f"{repository}/manifests/{digest}"][0]),
                "platform": {"architecture": architecture, "os": "linux"},
            }
            for architecture, digest in digests.items()
        ]
        index = {"schemaVersion": 2, "mediaType": DOCKER_INDEX if docker else OCI_INDEX, "manifests": entries}
        return self.add_manifest(repository, index, tag=tag)

    def add_manifest(self, repository: str, manifest: Mapping[str, Any], *, tag: str) -> str:
        """Puts any manifest there."""
        data = json.dumps(manifest).encode()
        digest = digest_of(data)
        for wanted in (tag, digest):
            self._content[f"{repository}/manifests/{wanted}"] = data, str(manifest.get("mediaType", OCI_MANIFEST))
        return digest

    def content(self) -> dict[str, tuple[bytes, str]]:
        """All that it serves, by path: the bytes and their media type."""
        return dict(self._content)

    def paths(self) -> list[str]:
        """What was asked for."""
        with self._lock:
            return [asked.path for asked in self.asked]

    def close(self) -> None:
        """Ends it; connections are refused from then on. May be called again."""
        self._is_closed = True
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_blob(self, repository: str, data: bytes, media_type: str) -> dict[str, Any]:
        digest = digest_of(data)
        self._content[f"{repository}/blobs/{digest}"] = data, "application/octet-stream"
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def _answer(self, handler: _Handler) -> None:
        path = urlsplit(handler.path).path
        if self._is_closed:  # on a connection that was kept
            handler.close_connection = True
        elif path == "/token":
            self._answer_token(handler)
        elif self.login and handler.headers["Authorization"] != f"Bearer {_TOKEN}":
            realm = f'Bearer realm="{self.url}/token",service="emulated"'
            handler.send(401, b"", {"WWW-Authenticate": realm})
        else:
            self._answer_content(handler, path.removeprefix("/v2/"))

    def _answer_token(self, handler: _Handler) -> None:
        wanted = "Basic " + base64.b64encode(":".join(self.login or ()).encode()).decode()
        if self.login and handler.headers["Authorization"] != wanted:
            handler.send(401, b"", {})
        else:
            handler.send(200, json.dumps({"token": _TOKEN}).encode(), {})

    def _answer_content(self, handler: _Handler, path: str) -> None:
        start = handler.headers["Range"] or "bytes=0-"
        offset = int(start.removeprefix("bytes=").partition("-")[0])
        with self._lock:
            tries = 1 + sum(asked.path == path for asked in self.asked)
            asked = Asked(path=path, offset=offset, tries=tries, authorized="Authorization" in handler.headers)
            self.asked.append(asked)
        fault = (self.fault and self.fault(asked)) or RegistryFault()
        time.sleep(fault.delay_s)
        if fault.status:
            told = {"Retry-After": fault.retry_after, "Location": fault.location}
            handler.send(fault.status, b"{}", {name: value for name, value in told.items() if value})
            return
        if path not in self._content:
            handler.send(404, b'{"errors":[{"code":"UNKNOWN"}]}', {})
            return
        data, media_type = self._content[path]
        if fault.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        whole = offset == 0 or fault.ignore_range
        body, headers = data if whole else data[offset:], {"Content-Type": media_type}
        if not whole:
            headers["Content-Range"] = f"bytes {offset}-{len(data) - 1}/{len(data)}"
        handler.send(200 if whole else 206, body, headers, cut_after=fault.cut_after)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    def send(self, status: int, body: bytes, headers: Mapping[str, str], *, cut_after: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:cut_after])
        self.close_connection = self.close_connection or cut_after is not None

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Says nothing."""


def make_layer(files: Mapping[str, bytes], *, mode: int = 0o644) -> bytes:
    """A layer of regular files; the same files make the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), compresslevel=1, mtime=0)
