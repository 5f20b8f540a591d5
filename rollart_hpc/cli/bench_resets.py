"""``rollart-hpc bench resets``: how many of ten thousand resets succeed when registry and sandboxes fail now and then.

Everything but the registry is real: the environment host, its children, the image cache on this disk, sandboxes. The
registry is one of this process whose answers fail, are cut or are corrupt in the given share; as large a share of the
sandboxes does not start. The cache has room for most images, not for all, so that they are pulled again and again.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rollart_hpc.data_plane.environment_host import EnvironmentHost
    from rollart_hpc.images.emulated_registry import Asked, EmulatedRegistry, RegistryFault

_TASK = "pulled"
_ROOM = 0.8
"""Share of the images for which the cache has room."""
_RESET_TIMEOUT_S = 120.0


@dataclass(slots=True)
class _Tally:
    seconds: list[float] = field(default_factory=list[float])
    faults: Counter[str] = field(default_factory=Counter[str])
    last_fault: str = ""


def bench_resets(
    count: Annotated[int, typer.Option(help="Resets.", min=1)] = 10_000,
    faults: Annotated[float, typer.Option(help="Share of answers and of starts that fail.", min=0.0, max=0.5)] = 0.02,
    images: Annotated[int, typer.Option(help="Different images.", min=1)] = 200,
    at_once: Annotated[int, typer.Option(help="Resets at the same time.", min=1)] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Resets environments that pull an image and open a sandbox, with faults on purpose; says how many succeed."""
    import asyncio
    import tempfile

    from rollart_hpc.config.node import ImagesSection, NodeSettings
    from rollart_hpc.images.emulated_registry import EmulatedRegistry

    with (
        tempfile.TemporaryDirectory(prefix="rollart-resets-") as directory,
        EmulatedRegistry(fault=_Faults(faults)) as registry,
    ):
        Path(directory).chmod(0o755)  # sandboxes may run as another user
        references, image_bytes = _add_images(registry, images)
        max_gb = max(1, int(_ROOM * images)) * image_bytes / 1e9
        settings = ImagesSection(node_directory=Path(directory) / "images", max_gb=max_gb)
        NodeSettings(images=settings).publish()
        tally, seconds = asyncio.run(_measure(references, count, faults, at_once))
        result = _result(tally, count, seconds, registry)
    if as_json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:20} {value}")


class _Faults:
    """Which answers of the registry fail; four ways in equal parts."""

    def __init__(self, share: float) -> None:
        self._share = share
        self.num_made = 0

    def __call__(self, asked: Asked) -> RegistryFault | None:
        import random

        from rollart_hpc.images.emulated_registry import RegistryFault

        if random.random() >= self._share:
            return None
        self.num_made += 1
        return random.choice(
            [
                RegistryFault(status=503),
                RegistryFault(status=429, retry_after="0.2"),
                RegistryFault(cut_after=10),
                RegistryFault(corrupt=True),
            ]
        )


def _add_images(registry: EmulatedRegistry, count: int) -> tuple[list[str], int]:
    """References of images that share a layer with a shell, and what one takes on the disk."""
    from rollart_hpc.images.emulated_registry import make_layer

    files = _shell()
    shell = make_layer(files, mode=0o755)
    references: list[str] = []
    for number in range(count):
        digest = registry.add_image(f"bench/{number}", [shell, make_layer({"number": f"{number}\n".encode()})])
        references.append(f"{registry.host}/bench/{number}@{digest}")
    return references, sum(map(len, files.values()))


def _shell() -> dict[str, bytes]:
    """This machine's shell with the libraries that it loads, by path."""
    import shutil
    import subprocess

    from rollart_hpc.errors import PreflightError

    shell = shutil.which("sh")
    if shell is None or shutil.which("ldd") is None:
        raise PreflightError("the images of this benchmark hold this machine's shell: `sh` and `ldd` must be on PATH")
    listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    return {"bin/sh": Path(shell).read_bytes(), **{path.lstrip("/"): Path(path).read_bytes() for path in libraries}}


async def _measure(references: list[str], count: int, faults: float, at_once: int) -> tuple[_Tally, float]:
    import asyncio

    from rollart_hpc.data_plane.environment_host import EnvironmentHost
    from rollart_hpc.data_plane.environment_spec import EnvironmentSpec

    spec = EnvironmentSpec(
        entry_point="rollart_hpc.cli.bench_pulled:Pulled",
        args={"references": references, "start_faults": faults},
        reset_timeout_s=_RESET_TIMEOUT_S,
        step_timeout_s=30.0,
    )
    seeds, tally, begin = iter(range(count)), _Tally(), time.monotonic()
    async with (
        EnvironmentHost({_TASK: spec}, max_children=64, max_resets=at_once) as host,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(at_once):
            group.create_task(_reset_on(host, seeds, tally))
    return tally, time.monotonic() - begin


async def _reset_on(host: EnvironmentHost, seeds: Any, tally: _Tally) -> None:
    from rollart_hpc.errors import EnvironmentFault

    for seed in seeds:
        begin = time.monotonic()
        try:
            async with host.open(_TASK) as session:
                await session.reset(seed)
                tally.seconds.append(time.monotonic() - begin)
                await session.step("")
        except EnvironmentFault as fault:
            tally.faults[fault.cause] += 1
            tally.last_fault = str(fault)


def _result(tally: _Tally, count: int, seconds: float, registry: EmulatedRegistry) -> dict[str, Any]:
    import numpy as np

    succeeded = len(tally.seconds)
    made = registry.fault.num_made if isinstance(registry.fault, _Faults) else 0
    return {
        "resets": count,
        "succeeded": succeeded,
        "rate": succeeded / count,
        "seconds": round(seconds, 1),
        "reset_p50_s": round(float(np.median(tally.seconds)), 4) if succeeded else None,
        "reset_p99_s": round(float(np.percentile(tally.seconds, 99)), 4) if succeeded else None,
        "registry_requests": len(registry.asked),
        "registry_faults": made,
        "faults": dict(tally.faults),
        "last_fault": tally.last_fault,
    }
