"""Many processes want the same image at the same moment."""

import json
import subprocess
import sys
import time

from rollart_hpc.config.node import ImagesSection
from rollart_hpc.images.emulated_registry import EmulatedRegistry, RegistryFault, make_layer

from .conftest import MakeSettings

PROCESSES = 64
HERD = """
import json, os, sys
from rollart_hpc.config.node import ImagesSection
from rollart_hpc.errors import ImageError
from rollart_hpc.images import use_image

settings, outcomes = ImagesSection.model_validate_json(sys.argv[2]), []
go_read, go_write = os.pipe()
for number in range(int(sys.argv[3])):
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(go_write)
        os.read(go_read, 1)
        try:
            with use_image(sys.argv[1], settings=settings) as image:
                outcome = (image.root / "f").read_text()[:9]
        except ImageError as error:
            outcome = str(error)
        os.write(write, outcome.encode())
        os._exit(0)
    os.close(write)
    outcomes.append(read)
os.close(go_write)
print(json.dumps([os.read(read, 10_000).decode() for read in outcomes]))
"""


def outcomes_of_herd(reference: str, settings: ImagesSection) -> list[str]:
    """Of processes that begin at the same moment."""
    done = subprocess.run(
        [sys.executable, "-c", HERD, reference, settings.model_dump_json(), str(PROCESSES)],
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def test_64_processes_cause_one_fetch_of_each_blob_and_a_second_node_none(
    registry: EmulatedRegistry, settings: MakeSettings
):
    registry.add_image(
        "app", [make_layer({f"{n}": b"x" * 100_000}) for n in range(4)] + [make_layer({"f": b"the image"})]
    )
    assert outcomes_of_herd(f"{registry.host}/app", settings("first", shared=True)) == ["the image"] * PROCESSES
    asked = registry.paths()
    assert len(asked) == len(set(asked)) == 1 + 1 + 5
    digest = next(path for path in registry.content() if "manifests/sha256" in path).partition("manifests/")[2]
    second = outcomes_of_herd(f"{registry.host}/app@{digest}", settings("second", shared=True))
    assert second == ["the image"] * PROCESSES
    assert registry.paths() == asked


def test_a_failure_is_everybody_s_who_waited_and_the_registry_is_not_asked_by_each(
    registry: EmulatedRegistry, settings: MakeSettings
):
    registry.fault = lambda asked: RegistryFault(delay_s=1.0)
    begun = time.monotonic()
    outcomes = outcomes_of_herd(f"{registry.host}/none", settings())
    assert all("404" in outcome for outcome in outcomes)
    assert len(registry.asked) < 5
    assert time.monotonic() - begun < 20
