"""An image is pulled once, verified, kept near, and stays while it is used."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import NoReturn

import pytest

from rollart_hpc.config.node import ImagesSection, NodeSettings
from rollart_hpc.errors import ImageError
from rollart_hpc.images import use_image
from rollart_hpc.images.cache import ImageCache
from rollart_hpc.images.collection import kept_on
from rollart_hpc.images.emulated_registry import EmulatedRegistry, RegistryFault, make_layer
from rollart_hpc.images.manifest import node_architecture
from rollart_hpc.images.prefetch import prefetch

from .conftest import MakeSettings

LAYERS = [make_layer({"etc/motd": b"1", "old": b"1"}), make_layer({"etc/motd": b"2", ".wh.old": b""})]


def small(text: str) -> list[bytes]:
    return [make_layer({"f": text.encode()})]


def content(reference: str, settings: ImagesSection) -> str:
    with use_image(reference, settings=settings) as image:
        return (image.root / "f").read_text()


@pytest.mark.parametrize("docker", [False, True], ids=["OCI", "docker"])
def test_the_image_for_this_node_is_unpacked_and_then_used_without_its_registry(
    registry: EmulatedRegistry, settings: MakeSettings, docker: bool
):
    about = {"Env": ["PATH=/bin", "A=b=c"], "WorkingDir": "/testbed"}
    digest = registry.add_image("team/app", LAYERS, tag="this", config=about, docker=docker)
    other = registry.add_image("team/app", small("other"), tag="other", architecture="s390x", docker=docker)
    index = registry.add_index("team/app", {"s390x": other, node_architecture(): digest}, tag="v1", docker=docker)
    reference = f"{registry.host}/team/app:v1"
    with use_image(reference, settings=settings()) as image:
        assert (image.reference, image.digest) == (reference, digest)
        assert (image.environment, image.working_directory) == ({"PATH": "/bin", "A": "b=c"}, "/testbed")
        assert (image.root / "etc/motd").read_text() == "2"
        assert not (image.root / "old").exists()
        assert all((image.root / name).is_dir() for name in ("dev", "proc", "sys", "tmp"))
        root = image.root
    registry.close()
    for again in (reference, f"{registry.host}/team/app@{index}", f"{registry.host}/team/app@{digest}"):
        with use_image(again, settings=settings()) as image:
            assert (image.root, image.digest) == (root, digest)


def test_the_second_node_gets_everything_from_the_shared_directory(registry: EmulatedRegistry, settings: MakeSettings):
    digest = registry.add_image("app", LAYERS)
    reference = f"{registry.host}/app@{digest}"
    with use_image(reference, settings=settings("first", shared=True)):
        pass
    asked = registry.paths()
    assert len(asked) == len(set(asked)) == 4
    with use_image(reference, settings=settings("second", shared=True)) as image:
        assert (image.root / "etc/motd").read_text() == "2"
    assert registry.paths() == asked


def test_a_tag_is_asked_for_once_per_run_and_means_the_same_on_every_node(
    registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reference = f"{registry.host}/app:moving"
    first = registry.add_image("app", small("first"), tag="moving")

    def digest_for(run: str, node: str) -> str:
        monkeypatch.delenv("ROLLART_NODE_SETTINGS", raising=False)
        monkeypatch.setenv(
            "ROLLART_NODE_SETTINGS",
            NodeSettings(images=settings(node), run_directory=tmp_path / run).model_dump_json(),
        )
        with use_image(reference) as image:
            return image.digest

    assert digest_for("run", "node 1") == first
    second = registry.add_image("app", small("second"), tag="moving")
    assert [digest_for("run", "node 1"), digest_for("run", "node 2")] == [first, first]
    assert digest_for("next run", "node 1") == second
    assert registry.paths().count("app/manifests/moving") == 2


def test_an_image_in_use_is_never_collected_and_the_one_used_longest_ago_goes_first(
    registry: EmulatedRegistry, settings: MakeSettings
):
    names = ["one", "two", "three"]
    for name in names:
        registry.add_image(name, small(name))
    cache = ImageCache(settings())
    with cache.use(f"{registry.host}/one") as held:
        for name in names[1:]:
            assert content(f"{registry.host}/{name}", settings()) == name
        for age_s, name in enumerate(["three", "two", "one"]):
            digest = cache.names.pinned(f"{registry.host}/{name}:latest")
            assert digest is not None
            record = cache.node.image(digest) / "image.json"
            os.utime(record, (time.time() - 1000 - age_s,) * 2)
        for blob in (cache.node.root / "blobs").iterdir():
            blob.unlink()
        cache.collect(sum(one.size_bytes for one in kept_on(cache.node)) - 1)
        left = {json.loads(file.read_bytes())["reference"] for file in cache.node.root.glob("images/*/image.json")}
        assert left == {f"{registry.host}/one", f"{registry.host}/three"}
        cache.collect(0)
        assert (held.root / "f").read_text() == "one"
    cache.collect(0)
    assert not list(cache.node.root.glob("images/*"))
    assert content(f"{registry.host}/one", settings()) == "one"


def test_files_that_a_cleaner_took_are_noticed_after_a_day(registry: EmulatedRegistry, settings: MakeSettings):
    registry.add_image("app", small("whole"))
    with use_image(f"{registry.host}/app", settings=settings()) as image:
        root = image.root
    (root / "f").unlink()
    os.utime(root.parent / "image.json", (time.time() - 90_000,) * 2)
    assert content(f"{registry.host}/app", settings()) == "whole"


@pytest.mark.parametrize("age_s", [0.0, 2 * 86400.0], ids=["at once", "after days"])
def test_an_image_without_its_root_is_unpacked_again(registry: EmulatedRegistry, settings: MakeSettings, age_s: float):
    registry.add_image("app", small("1"))
    with use_image(f"{registry.host}/app", settings=settings()) as image:
        directory = image.root.parent
    shutil.rmtree(directory / "root")
    used_at = time.time() - age_s
    os.utime(directory / "image.json", (used_at, used_at))
    assert content(f"{registry.host}/app", settings()) == "1"


def test_a_disk_that_does_not_take_a_lock_file_is_an_error_of_the_image(
    registry: EmulatedRegistry, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rollart_hpc.images.locks._take", full)
    registry.add_image("app", small("1"))
    with (
        pytest.raises(ImageError, match="No space left") as raised,
        use_image(f"{registry.host}/app", settings=settings()),
    ):
        pass
    assert raised.value.retryable


def test_a_directory_and_a_layout_on_disk_are_images_too(
    registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path
):
    digest = registry.add_image("app", LAYERS)
    layout = tmp_path / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    for path, (data, _) in registry.content().items():
        if not path.endswith("/latest"):
            (layout / "blobs" / "sha256" / path.rpartition(":")[2]).write_bytes(data)
    entry = {"digest": digest, "size": 1, "annotations": {"org.opencontainers.image.ref.name": "v1"}}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    for reference in (f"oci:{layout}:v1", f"oci:{layout}"):
        with use_image(reference, settings=settings()) as image:
            assert (image.digest, (image.root / "etc/motd").read_text()) == (digest, "2")
    with pytest.raises(ImageError, match="no image 'v2'; give one of its tags: v1"), use_image(f"oci:{layout}:v2"):
        pass
    with use_image(f"dir:{tmp_path}", settings=settings()) as image:
        assert (image.root, image.digest) == (tmp_path, "")
    with pytest.raises(ImageError, match="no such directory"), use_image(f"dir:{tmp_path}/none", settings=settings()):
        pass


def test_a_mirror_is_asked_before_the_origin_and_may_have_a_prefix(registry: EmulatedRegistry, settings: MakeSettings):
    registry.add_image("hub/library/tool", small("mirrored"))
    own = settings(mirrors={"docker.io": f"{registry.url}/hub"})
    assert content("tool", own) == "mirrored"


def test_a_registry_with_a_login_gives_to_those_who_have_it(settings: MakeSettings, tmp_path: Path):
    with EmulatedRegistry(login=("me", "secret")) as registry:
        registry.add_image("app", small("private"))
        with pytest.raises(ImageError, match="without a login") as raised:
            content(f"{registry.host}/app", settings())
        assert not raised.value.retryable
        file = tmp_path / "config.json"
        for auth in ("bWU6d3Jvbmc=", "bWU6c2VjcmV0"):
            file.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
            if auth == "bWU6d3Jvbmc=":
                with pytest.raises(ImageError, match="refuses this login"):
                    content(f"{registry.host}/app", settings(credentials=file))
            else:
                assert content(f"{registry.host}/app", settings(credentials=file)) == "private"


def test_a_login_is_not_carried_to_where_a_registry_redirects(
    registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path
):
    with EmulatedRegistry(login=("me", "secret")) as front:
        for one in (front, registry):
            one.add_image("app", small("elsewhere"))
        front.fault = lambda asked: (
            RegistryFault(status=307, location=f"{registry.url}/v2/{asked.path}") if "/blobs/" in asked.path else None
        )
        file = tmp_path / "config.json"
        file.write_text(json.dumps({"auths": {front.host: {"username": "me", "password": "secret"}}}))
        assert content(f"{front.host}/app", settings(credentials=file)) == "elsewhere"
    assert [asked.authorized for asked in registry.asked] == [False, False]
    assert all(asked.authorized for asked in front.asked)


def test_prefetching_pulls_in_a_process_of_its_own_and_says_what_failed(
    registry: EmulatedRegistry, settings: MakeSettings
):
    digest = registry.add_image("app", small("early"))
    good, bad = f"{registry.host}/app", f"{registry.host}/none"
    found = {one.reference: one for one in prefetch([good, bad, "No:Reference:", good], settings())}
    assert (found[good].digest, found[good].error) == (digest, "")
    assert "404" in found[bad].error
    assert "expected" in found["No:Reference:"].error
    assert [found[bad].retryable, len(found)] == [False, 3]
    registry.close()
    assert content(good, settings()) == "early"
