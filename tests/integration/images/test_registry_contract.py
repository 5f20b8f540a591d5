"""The client against the registry that everybody runs, where it is installed (Debian: docker-registry)."""

import hashlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.images import use_image
from rollart_hpc.images.emulated_registry import EmulatedRegistry, make_layer
from rollart_hpc.ports import free_port

from .conftest import MakeSettings

PROGRAM = shutil.which("docker-registry") or "/usr/bin/docker-registry"
CONFIG = """
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@pytest.fixture
def docker_registry(tmp_path: Path) -> Iterator[str]:
    """The host of a running registry."""
    if not Path(PROGRAM).exists():
        pytest.skip("docker-registry is not installed")
    port = free_port("127.0.0.1")
    (tmp_path / "config.yml").write_text(CONFIG.format(root=tmp_path / "registry", port=port))
    process = subprocess.Popen(
        [PROGRAM, "serve", str(tmp_path / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        while True:
            assert process.poll() is None
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5).close()
                break
            except OSError:
                continue
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def push(host: str, registry: EmulatedRegistry) -> None:
    """Puts everything of an emulated registry into a real one."""
    content = sorted(registry.content().items(), key=lambda item: "/blobs/" not in item[0])
    for path, (data, media_type) in content:
        repository, kind, name = path.rsplit("/", 2)
        if kind == "manifests":
            _send("PUT", f"http://{host}/v2/{repository}/manifests/{name}", data, media_type)
        else:
            place = _send("POST", f"http://{host}/v2/{repository}/blobs/uploads/", b"", media_type)
            assert name == f"sha256:{hashlib.sha256(data).hexdigest()}"
            _send("PUT", f"{place}&digest={name}", data, "application/octet-stream")


def _send(method: str, url: str, data: bytes, media_type: str) -> str:
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": media_type})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Location"]


@pytest.mark.parametrize("docker", [False, True], ids=["OCI", "docker"])
def test_a_real_registry_serves_tags_digests_and_the_rest_of_a_blob(
    docker_registry: str, registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path, docker: bool
):
    layers = [make_layer({"f": bytes(1 << 20)}), make_layer({"f": b"pushed", "g": b"1"})]
    digest = registry.add_image("team/app", layers, tag="v1", docker=docker)
    push(docker_registry, registry)
    with use_image(f"{docker_registry}/team/app:v1", settings=settings("by tag")) as image:
        assert (image.digest, (image.root / "f").read_text()) == (digest, "pushed")
    partial = tmp_path / "by digest" / "partial" / hashlib.sha256(layers[0]).hexdigest()
    partial.parent.mkdir(parents=True)
    partial.write_bytes(layers[0][:1000])
    with use_image(f"{docker_registry}/team/app@{digest}", settings=settings("by digest")) as image:
        assert (image.root / "f").read_text() == "pushed"
    assert json.loads((image.root.parent / "image.json").read_text())["digest"] == digest
