"""Whatever a level does, an image is right or there is an error that says whether trying again helps."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rollart_hpc.config.node import ImagesSection
from rollart_hpc.errors import ImageError
from rollart_hpc.images import answering, use_image
from rollart_hpc.images.blobs import digest_of
from rollart_hpc.images.emulated_registry import Asked, EmulatedRegistry, RegistryFault, make_layer

from .conftest import MakeSettings

NOISE = random.Random(0).randbytes(3 << 20)
BIG = make_layer({"f": NOISE})


def pulled(reference: str, settings: ImagesSection) -> bytes:
    with use_image(reference, settings=settings) as image:
        return (image.root / "f").read_bytes()


def big_blobs(registry: EmulatedRegistry) -> list[Asked]:
    path = max(registry.content().items(), key=lambda item: len(item[1][0]))[0]
    return [asked for asked in registry.asked if asked.path == path]


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


@pytest.mark.parametrize("ignore_range", [False, True], ids=["ranges", "ranges ignored"])
def test_a_download_that_is_cut_goes_on_where_it_was_cut(
    registry: EmulatedRegistry, settings: MakeSettings, ignore_range: bool
):
    registry.fault = lambda asked: RegistryFault(
        cut_after=(1 << 20) * asked.tries if asked.tries < 4 else None, ignore_range=ignore_range
    )
    registry.add_image("app", [BIG])
    assert pulled(f"{registry.host}/app", settings()) == NOISE
    offsets = [asked.offset for asked in big_blobs(registry)]
    assert offsets == sorted(set(offsets))
    assert len(offsets) > 2


def test_a_few_bytes_of_each_connection_are_progress(registry: EmulatedRegistry, settings: MakeSettings):
    registry.fault = lambda asked: RegistryFault(cut_after=400_000) if asked.offset + 400_000 < len(BIG) else None
    registry.add_image("app", [BIG])
    assert pulled(f"{registry.host}/app", settings()) == NOISE
    assert len(big_blobs(registry)) >= len(BIG) // 400_000


@pytest.mark.parametrize("place", ["manifests", "blobs"])
def test_a_registry_that_trickles_costs_no_more_than_the_deadline(settings: MakeSettings, place: str):
    with trickling_registry(place) as host, pytest.raises(ImageError, match=r"pull_timeout_s|timed out") as raised:
        begun = time.monotonic()
        pulled(f"{host}/app", settings(pull_timeout_s=1.0))
    assert raised.value.retryable
    assert time.monotonic() - begun < 5


@contextlib.contextmanager
def trickling_registry(place: str) -> Iterator[str]:
    """A registry of one image that gives the answers of one place a byte at a time; its host."""
    config, layer = b"{}", make_layer({"f": b""})
    parts = [{"digest": digest_of(data), "size": len(data)} for data in (config, layer)]
    content = {digest_of(data): data for data in (config, layer)}
    content["latest"] = json.dumps({"config": parts[0], "layers": parts[1:]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = content[self.path.rpartition("/")[2]]
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            step = 1 if f"/{place}/" in self.path else len(data)
            with contextlib.suppress(OSError):
                for begin in range(0, len(data), step):
                    self.wfile.write(data[begin : begin + step])
                    ended.wait(0.0 if step > 1 else 0.5)

        def log_message(self, *_: object) -> None:
            pass

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_a_killed_puller_had_is_not_fetched_again(
    registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path
):
    registry.add_image("app", [BIG])
    registry.fault = lambda asked: (
        RegistryFault(cut_after=2 << 20) if asked.path.endswith(blob) and asked.tries == 1
        else RegistryFault(delay_s=60) if asked.path.endswith(blob) and asked.tries == 2
        else None
    )  # fmt: skip
    blob = max(registry.content().items(), key=lambda item: len(item[1][0]))[0].rpartition(":")[2]
    code = (
        "import sys; from rollart_hpc.config.node import ImagesSection; from rollart_hpc.images import use_image\n"
        "with use_image(sys.argv[1], settings=ImagesSection.model_validate_json(sys.argv[2])): pass"
    )
    reference = f"{registry.host}/app"
    killed = subprocess.Popen([sys.executable, "-c", code, reference, settings().model_dump_json()])
    try:
        partial = tmp_path / "node" / "partial" / blob
        while len(big_blobs(registry)) < 2:
            assert killed.poll() is None
        assert partial.stat().st_size >= 1 << 20
    finally:
        killed.kill()
        killed.wait()
    had = partial.stat().st_size
    assert pulled(reference, settings()) == NOISE
    assert big_blobs(registry)[-1].offset == had
    assert names_in(partial.parent) == []


def test_a_registry_that_is_busy_is_asked_again_when_it_says(registry: EmulatedRegistry, settings: MakeSettings):
    registry.add_image("app", [BIG])
    statuses = {1: 429, 2: 500, 3: 503}
    registry.fault = lambda asked: RegistryFault(status=statuses.get(asked.tries, 0), retry_after="0")
    assert pulled(f"{registry.host}/app", settings()) == NOISE
    registry.fault = lambda asked: RegistryFault(status=429, retry_after="3600")
    registry.add_image("late", [BIG])
    with pytest.raises(ImageError, match="answered 429") as raised:
        pulled(f"{registry.host}/late", settings())
    assert raised.value.retryable
    assert registry.paths().count("late/manifests/latest") == 1


@pytest.mark.parametrize("where", ["node", "shared"])
def test_a_corrupt_copy_is_dropped_and_fetched_again(
    registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
):
    reference = f"{registry.host}/app@{registry.add_image('app', [BIG])}"
    assert pulled(reference, settings(shared=True)) == NOISE
    if where == "shared":
        shutil.rmtree(tmp_path / "node")
    else:
        shutil.rmtree(tmp_path / "node" / "images")
        shutil.rmtree(tmp_path / "shared")
    copies = [file for file in (tmp_path / where).rglob("*") if "blobs" in file.parts and file.is_file()]
    assert len(copies) == 3
    for file in copies:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    before = registry.paths()
    assert pulled(reference, settings(shared=True)) == NOISE
    assert sorted(registry.paths()[len(before) :]) == sorted(before)
    assert "corrupt" in caplog.text
    shutil.rmtree(tmp_path / "node")
    asked = registry.paths()
    assert pulled(reference, settings(shared=True)) == NOISE
    assert registry.paths() == asked


def _digest(registry: EmulatedRegistry) -> str:
    return next(path.partition("manifests/")[2] for path in registry.content() if "manifests/sha256" in path)


@pytest.mark.parametrize("part", ["manifests", "blobs"])
def test_a_registry_that_gives_other_bytes_than_asked_for_is_not_believed(
    registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path, part: str
):
    digest = registry.add_image("app", [BIG])
    registry.fault = lambda asked: RegistryFault(corrupt=part in asked.path)
    with pytest.raises(ImageError, match=r"corrupt|other bytes") as raised:
        pulled(f"{registry.host}/app@{digest}", settings(shared=True))
    assert not raised.value.retryable
    assert names_in(tmp_path / "node" / "images") == names_in(tmp_path / "node" / "partial") == []
    assert not (tmp_path / "shared").exists() or part == "blobs"
    registry.fault = lambda asked: RegistryFault(corrupt=part in asked.path and asked.tries == 3)  # once, on the way
    assert pulled(f"{registry.host}/app@{digest}", settings(shared=True)) == NOISE


def test_an_image_that_does_not_exist_is_an_error_that_does_not_go_away(
    registry: EmulatedRegistry, settings: MakeSettings
):
    for reference in (f"{registry.host}/none", f"{registry.host}/none@sha256:{'0' * 64}"):
        with pytest.raises(ImageError, match="404") as raised:
            pulled(reference, settings())
        assert not raised.value.retryable


def test_an_image_of_another_machine_or_without_layers_says_so(registry: EmulatedRegistry, settings: MakeSettings):
    foreign = registry.add_image("app", [BIG], architecture="s390x")
    registry.add_index("app", {"s390x": foreign}, tag="index")
    registry.add_manifest("app", {"schemaVersion": 1, "fsLayers": []}, tag="old")
    for wanted, text in ((f"@{foreign}", "s390x"), (":index", "no image for linux"), (":old", "schema 1")):
        with pytest.raises(ImageError, match=text) as raised:
            pulled(f"{registry.host}/app{wanted}", settings())
        assert not raised.value.retryable


def test_a_dead_origin_does_not_matter_where_the_second_level_has_it(
    registry: EmulatedRegistry, settings: MakeSettings, caplog: pytest.LogCaptureFixture
):
    digest = registry.add_image("app", [BIG])
    reference = f"{registry.host}/app"
    assert pulled(reference, settings("first", shared=True)) == NOISE
    registry.close()
    assert pulled(f"{reference}@{digest}", settings("second", shared=True)) == NOISE
    assert pulled(reference, settings("third", shared=True)) == NOISE
    assert "as it was when its registry last answered" in caplog.text
    with pytest.raises(ImageError, match="refused") as raised:
        pulled(reference, settings("fourth"))
    assert raised.value.retryable


def test_a_dead_mirror_costs_one_wait_and_one_line_and_is_asked_again_later(
    registry: EmulatedRegistry, settings: MakeSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    names = ["a", "b", "c", "d"]
    with EmulatedRegistry(fault=lambda asked: RegistryFault(status=503)) as mirror:
        for name in names:
            registry.add_image(name, [make_layer({"f": name.encode()})])
            mirror.add_image(name, [make_layer({"f": b"mirrored"})])

        def pull(name: str) -> bytes:
            return pulled(f"{registry.host}/{name}", settings(mirrors={registry.host: mirror.url}))

        assert (pull("a"), pull("b")) == (b"a", b"b")
        assert mirror.paths() == ["a/manifests/latest"] * 2
        breaker = next((tmp_path / "node" / "breakers").iterdir())
        os.utime(breaker, (0, 0))
        mirror.fault = lambda asked: RegistryFault(status=429, retry_after="8")  # longer than the origin takes
        assert pull("c") == b"c"
        assert mirror.paths()[2:] == ["c/manifests/latest"]
        assert caplog.text.count("is left out for") == 1
        os.utime(breaker, (0, 0))
        mirror.fault = None
        assert pull("d") == b"mirrored"
        assert not breaker.exists()


@pytest.mark.parametrize("kind", ["unwritable", "hanging"])
def test_a_shared_directory_that_fails_or_never_answers_is_left_out(
    registry: EmulatedRegistry,
    settings: MakeSettings,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    registry.add_image("app", [BIG])
    if kind == "unwritable":
        (tmp_path / "shared").write_text("a file")
    else:
        # Opening a pipe that nobody writes to blocks as a call into a file system without its server does.
        monkeypatch.setattr(answering, "ANSWER_S", 0.2)
        name = _digest(registry).removeprefix("sha256:")
        (tmp_path / "shared" / "blobs" / name[:2]).mkdir(parents=True)
        os.mkfifo(tmp_path / "shared" / "blobs" / name[:2] / name)
    assert pulled(f"{registry.host}/app@{_digest(registry)}", settings(shared=True)) == NOISE
    assert caplog.text.count("is left out for") == 1


FULL_DISK = """
import json, os, sys
from pathlib import Path
from rollart_hpc.config.node import ImagesSection
from rollart_hpc.errors import ImageError
from rollart_hpc.images import use_image

settings = ImagesSection(node_directory=Path(sys.argv[1]), pull_timeout_s=20.0)
outcomes = []
for reference in sys.argv[2:]:
    try:
        with use_image(reference, settings=settings) as image:
            outcomes.append(len((image.root / "f").read_bytes()))
    except ImageError as error:
        outcomes.append([error.retryable, str(error)])
left = sorted(path.name for kind in ("partial", "unpacking", "trash") for path in (Path(sys.argv[1]) / kind).iterdir())
print(json.dumps([outcomes, left, len(os.listdir(Path(sys.argv[1]) / "images"))]))
"""


def test_on_a_full_disk_unused_images_make_room_and_what_cannot_fit_leaves_nothing(
    registry: EmulatedRegistry, tmp_path: Path
):
    """Of 10 MB: two images of 3 MB take 6 each with their layers, one in three layers needs 12 or, sparingly, 8."""

    def layer(name: str, size_mb: int) -> bytes:
        return make_layer({name: random.Random(f"{name} {size_mb}").randbytes(size_mb << 20)})

    images = {"a": [layer("f", 3)], "b": [layer("f", 3), layer("g", 0)]}
    images |= {"layered": [layer("f", 2), layer("g", 2), layer("h", 2)], "huge": [layer("f", 12)]}
    for name, layers in images.items():
        registry.add_image(name, layers)
    (tmp_path / "disk").mkdir()
    mounted = 'mount -t tmpfs -o size=10m rollart "$4" && exec "$@"'
    references = [f"{registry.host}/{name}" for name in images]
    script = [sys.executable, "-c", FULL_DISK, str(tmp_path / "disk"), *references]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounted, "sh", *script],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare failed" in done.stderr:
        pytest.skip("no user namespaces here, which a disk of a certain size is made in")
    assert done.returncode == 0, done.stderr
    (*fits, (retryable, text)), left, num_images = json.loads(done.stdout)
    assert fits == [3 << 20, 3 << 20, 2 << 20]
    assert retryable
    assert "has no room" in text
    assert (left, num_images) == ([], 0)
