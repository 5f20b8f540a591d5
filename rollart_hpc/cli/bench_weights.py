"""``rollart-hpc bench weights``: how fast weights go through the store, beside what the store and memory allow."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    import torch

    from rollart_hpc.weights.store import Buffer, StoreEndpoint, WeightStore

_REMOVE_DEADLINE_S = 60.0
_TENSOR_BYTES = 8 << 20
_TARGET = 0.7
Seconds = dict[str, float]
Result = TypeVar("Result")


def bench_weights(
    size_mb: Annotated[int, typer.Option(help="Size of the weights, MiB.", min=1)] = 1024,
    bucket_mb: Annotated[int, typer.Option(help="Size of a bucket, MiB.", min=1)] = 256,
    versions: Annotated[int, typer.Option(help="Rounds; the best of each measurement counts.", min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Measures publishing and pulling of weights through a weight store of its own on this machine.

    Every round publishes and pulls one version by the trainer's and the generation worker's code, end to end:
    copies, checksums, lookups, puts and gets included. The same round moves the same bytes in the same buckets by
    Mooncake alone (batch_put_from and batch_get_into, no checksum), by safetensors on /dev/shm and by memcpy.
    Best of all rounds after one that does not count, GB/s = 10^9 bytes per second.

    What limits it: Mooncake's TCP transport copies each byte into and out of a socket, in this process and in the
    memory owner's, about 1 to 2 GB/s for both on two cores; the copy to staging (memcpy) and the checksum (faster
    than memcpy) run beside it and cost what they take of those cores. The first versions of a run are slower than
    these figures, on virtual machines up to ten times: pages are touched for the first time, in the memory owner
    and in the staging and pull buffers. A GPU adds its copy to the host, RDMA removes most of the socket's cost.
    Takes about eight times the size of the weights in memory.
    """
    speeds = asyncio.run(_bench(size_mb, bucket_mb, versions))
    if as_json:
        print(json.dumps({"size_mb": size_mb, "bucket_mb": bucket_mb, "versions": versions, **speeds}))
    else:
        _print_table(speeds, size_mb, bucket_mb)


async def _bench(size_mb: int, bucket_mb: int, versions: int) -> Mapping[str, float]:
    from rollart_hpc.weights.server import MemoryOwner, MooncakeMaster

    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as folder:
        # Longer than one bucket takes on a busy machine, yet short: every round's removal waits for it.
        lease_s = 1 + bucket_mb / 64
        master = await MooncakeMaster.start(log_dir=Path(folder), lease_s=lease_s)
        try:
            # Two copies, ours and Mooncake's alone, and room for fragments.
            owner_mb = 2 * size_mb + 2 * bucket_mb + 64
            owner = await MemoryOwner.start(master.endpoint, log_dir=Path(folder), size_mb=owner_mb)
            try:
                return await asyncio.to_thread(_measure, master.endpoint, size_mb, bucket_mb, versions)
            finally:
                await owner.stop()
        finally:
            await master.stop()


def _measure(endpoint: StoreEndpoint, size_mb: int, bucket_mb: int, versions: int) -> Mapping[str, float]:
    from rollart_hpc.weights.store import WeightStore

    store = WeightStore.connect(endpoint)
    try:
        rounds = _Rounds(store, size_mb << 20, bucket_mb)
        best: Seconds = {}
        rounds.touch_store()
        rounds.run(0)
        for version in range(1, versions + 1):
            for name, seconds in rounds.run(version).items():
                best[name] = min(seconds, best.get(name, seconds))
        speeds = {f"{name}_gb_s": round((size_mb << 20) / seconds / 1e9, 3) for name, seconds in best.items()}
    finally:
        store.close()
    return {
        **speeds,
        "publish_share": round(speeds["publish_gb_s"] / speeds["mooncake_put_gb_s"], 3),
        "pull_share": round(speeds["pull_gb_s"] / speeds["mooncake_get_gb_s"], 3),
    }


class _Rounds:
    """The weights, the buffers and one round of all measurements."""

    def __init__(self, store: WeightStore, size_bytes: int, bucket_mb: int) -> None:
        import torch

        from rollart_hpc.weights.publisher import WeightPublisher
        from rollart_hpc.weights.puller import WeightPuller

        self._store = store
        self._publisher = WeightPublisher(store, run="bench", attempt=1, rank=0, bucket_mb=bucket_mb)
        self._puller = WeightPuller(store)
        self._flat = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8)
        self._tensors = {
            f"t{index}": chunk.view(torch.bfloat16) for index, chunk in enumerate(self._flat.split(_TENSOR_BYTES))
        }
        self._raw = store.allocate(size_bytes)
        self._raw[:] = self._flat.numpy()
        starts = range(0, size_bytes, bucket_mb << 20)
        self._raw_buckets: list[Buffer] = [self._raw[start : start + (bucket_mb << 20)] for start in starts]

    def touch_store(self) -> None:
        """Fills the store once, so that no later put waits for the owner's fresh pages."""
        from rollart_hpc.errors import WeightsError

        filled: list[str] = []
        try:
            while True:
                self._store.put([f"fill/{len(filled)}"], [self._raw_buckets[0]])
                filled.append(f"fill/{len(filled)}")
        except WeightsError:
            self._remove(filled)

    def run(self, version: int) -> Seconds:
        """Seconds by measurement; ours beside Mooncake's alone, since a shared machine changes by the second."""
        from rollart_hpc.types import Manifest

        seconds: Seconds = {}
        keys = [f"bench/{version}/{index}" for index in range(len(self._raw_buckets))]
        seconds["mooncake_put"], _ = _timed(lambda: self._one_by_one(self._store.put, keys))
        seconds["publish"], buckets = _timed(lambda: self._publisher.publish(version, self._tensors.items()))
        manifest = Manifest(version=version, attempt=1, buckets=buckets, probe_token_ids=b"", probe_logprobs=b"")
        seconds["mooncake_get"], _ = _timed(lambda: self._one_by_one(self._store.get, keys))
        if version == 0:
            # The puller's two buffers take turns; both are touched before anything counts.
            self._puller.prefetch(manifest)
        seconds["pull"], pulled = _timed(lambda: self._puller.prefetch(manifest))
        _check_equal(dict(pulled.tensors()), self._tensors)
        seconds["memcpy"], _ = _timed(lambda: self._copy(self._flat.numpy()))
        seconds |= self._shared_memory()
        self._remove([*keys, *(bucket.key for bucket in buckets)])
        return seconds

    def _one_by_one(self, move: Callable[[list[str], list[Buffer]], None], keys: list[str]) -> None:
        for key, buffer in zip(keys, self._raw_buckets, strict=True):
            move([key], [buffer])

    def _copy(self, source: Buffer) -> None:
        self._raw[:] = source

    def _shared_memory(self) -> Seconds:
        import torch
        from safetensors.torch import load_file, save_file

        with tempfile.TemporaryDirectory(prefix="rollart-bench-", dir="/dev/shm") as folder:
            path = Path(folder) / "weights.safetensors"
            written, _ = _timed(lambda: save_file(self._tensors, path))

            def read() -> None:
                target = torch.from_numpy(self._raw)
                loaded = load_file(path)
                for name, part in zip(self._tensors, target.split(_TENSOR_BYTES), strict=True):
                    part.view(torch.bfloat16).copy_(loaded[name])

            return {"shm_write": written, "shm_read": _timed(read)[0]}

    def _remove(self, keys: list[str]) -> None:
        deadline = time.monotonic() + _REMOVE_DEADLINE_S
        while keys := list(self._store.remove(keys)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(keys)} objects could not be removed in {_REMOVE_DEADLINE_S:g} s")
            time.sleep(0.2)


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def _check_equal(pulled: Mapping[str, torch.Tensor], published: Mapping[str, torch.Tensor]) -> None:
    import torch

    from rollart_hpc.errors import CorruptWeightsError

    for name, tensor in published.items():
        if not torch.equal(pulled[name].view(torch.int16), tensor.view(torch.int16)):
            raise CorruptWeightsError(f"{name} was pulled with other bytes than it was published with")


def _print_table(speeds: Mapping[str, float], size_mb: int, bucket_mb: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("direction", "ours GB/s", "Mooncake alone", "share", "target", "/dev/shm", "memcpy")
    table.title = f"weights of {size_mb} MiB in buckets of {bucket_mb} MiB"
    rows = (
        ("publish", "mooncake_put", "publish_share", "shm_write"),
        ("pull", "mooncake_get", "pull_share", "shm_read"),
    )
    for ours, alone, share, shared_memory in rows:
        cells = [speeds[f"{name}_gb_s"] for name in (ours, alone, shared_memory, "memcpy")]
        numbers = [f"{cell:.2f}" for cell in cells]
        table.add_row(ours, *numbers[:2], f"{speeds[share]:.2f}", f"{_TARGET:.2f}", *numbers[2:])
    Console().print(table)
