import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rollart_hpc.config.node import Runtime, SandboxSection
from rollart_hpc.sandbox.probe import why_not

PROGRAMS = ("bash", "sh", "cat", "env", "grep", "head", "ls", "ln", "mkdir", "mv", "rm", "sleep", "stat")

SMALL = SandboxSection(memory_mb=200, disk_mb=24, max_processes=40, max_output_kb=64)


@pytest.fixture(scope="session", params=["bubblewrap", "apptainer"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Each one that isolates on this node; bubblewrap must."""
    reason = why_not(request.param)
    if request.param == "apptainer" and reason is not None:
        pytest.skip(f"apptainer: {reason}")
    return request.param


@pytest.fixture
def small(runtime: Runtime) -> SandboxSection:
    return SMALL.model_copy(update={"runtime": runtime})


@pytest.fixture(scope="session")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system as an image has it, unpacked by the user of the tests."""
    root = tmp_path_factory.mktemp("image") / "root"
    for directory in ("usr/bin", "usr/lib", "usr/lib64", "etc", "root", "tmp", "testbed/src"):
        (root / directory).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "root").chmod(0o700)
    (root / "etc/private").write_text("of the image's root")
    (root / "etc/private").chmod(0o600)
    (root / "testbed/src/a.txt").write_text("lower\n")
    for program in PROGRAMS:
        copy_program(program, root)
    return root


def copy_program(name: str, root: Path) -> None:
    source = shutil.which(name)
    assert source
    shutil.copy(source, root / "usr/bin" / name)
    linked = subprocess.run(["ldd", source], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+\.so\S*)", linked):
        place = root / "usr" / library.removeprefix("/usr").lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
