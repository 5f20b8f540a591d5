"""The profiler on a real bus, with workers whose counters a test states."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import MemberView
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.control_plane import profiler_service
from rollart_hpc.control_plane.profiler_service import ProfilerService
from rollart_hpc.control_plane.resource_service import ResourceService
from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.cluster import Cluster
from rollart_hpc.data_plane.declarations import register
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.resource_plane.profile import read_profile
from rollart_hpc.types import Role, TagUsage, Ticket
from tests.builders import run_config, trajectory
from tests.integration.conftest import StartWorker

LAKE_ON_H20 = TagUsage(num_requests=100, num_prompt_tokens=400_000, num_new_tokens=4_000, prefill_s=27.0, decode_s=1.0)
SUMS_ON_H800 = TagUsage(num_requests=100, num_prompt_tokens=8_000, num_new_tokens=99_000, prefill_s=0.1, decode_s=29.0)
BETTER = {"lake": "H800", "sums": "H20"}


class Counting(Worker):
    """Says what a test says that it used."""

    role = Role.ACTOR_GEN
    counters: ClassVar[dict[str, dict[str, TagUsage]]] = {}
    silent: ClassVar[set[str]] = set()

    async def run(self) -> None:
        await asyncio.Event().wait()

    @register()
    async def usage(self) -> dict[str, TagUsage]:
        if self.member.member_id in self.silent:
            await asyncio.Event().wait()
        return self.counters.get(self.member.member_id, {})


def configured(**profiler: Any) -> RunConfig:
    config = run_config(tasks={"lake": {}, "sums": {}})
    h800 = config.pools["all"].model_copy(update={"hardware": "H800"})
    h20 = h800.model_copy(update={"hardware": "H20", "actor_train": 0})
    return config.model_copy(
        update={
            "pools": {"h800": h800, "h20": h20},
            "affinity": {"lake": "H20", "sums": "H800"},
            "profiler": config.profiler.model_copy(update=profiler),
        }
    )


class Run:
    """A run's profiler and the workers of two classes."""

    def __init__(self, bus: Bus, view: MemberView, directory: Path, start_worker: StartWorker) -> None:
        self.bus, self.view, self.directory, self.start_worker = bus, view, directory, start_worker
        self.preferred: list[tuple[dict[str, str], str]] = []
        self.running: list[asyncio.Task[None]] = []

    def serve(self, config: RunConfig, prefer: Any = None) -> ProfilerService:
        def keep(mapping: Mapping[str, str], reason: str) -> None:
            self.preferred.append((dict(mapping), reason))

        cluster = Cluster(ActorGenCls, self.bus, self.view)
        service = ProfilerService(config, self.directory, cluster, prefer=prefer or keep)
        self.running.append(asyncio.create_task(service.run()))
        return service

    async def start(self, member_id: str, hardware: str) -> None:
        self.start_worker(Counting, member_id, hardware=hardware)
        await self.view.wait_until(lambda: self.view.get(member_id) is not None, 10)

    async def step(self, service: ProfilerService, **usage: dict[str, TagUsage]) -> None:
        """The workers did as much again, and a train step has ended; waits until it is measured."""
        for member_id, by_tag in usage.items():
            before = Counting.counters.setdefault(member_id, {})
            before.update({tag: before.get(tag, TagUsage()).plus(more) for tag, more in by_tag.items()})
        before = read_profile(self.directory)
        service.stepped()
        async with asyncio.timeout(10):
            while read_profile(self.directory) == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture
async def run(
    bus: Bus, view: MemberView, tmp_path: Path, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Run]:
    monkeypatch.setattr(Counting, "counters", {})
    monkeypatch.setattr(Counting, "silent", set())
    made = Run(bus, view, tmp_path, start_worker)
    await made.start("gen_a", "H800")
    await made.start("gen_b", "H20")
    yield made
    for task in made.running:
        task.cancel()
    if made.running:
        await asyncio.wait(made.running)


async def as_declared(run: Run, service: ProfilerService) -> None:
    await run.step(service, gen_a={"sums": SUMS_ON_H800}, gen_b={"lake": LAKE_ON_H20})


async def test_static_measures_and_does_nothing_else(run: Run):
    service = run.serve(configured(affinity="static"))
    for _ in range(4):
        await as_declared(run, service)
    profile = read_profile(run.directory)
    assert profile is not None
    assert [(speed.tag, speed.hardware, speed.num_requests) for speed in profile.speeds] == [
        ("lake", "H20", 400),
        ("sums", "H800", 400),
    ]
    summary = service.as_summary()
    assert summary["profile"]["lake"]["hardware"]["H20"]["prefill_s"] == pytest.approx(27.0)
    mapping = {"lake": "H20", "sums": "H800"}
    assert summary["affinity"] == {"mode": "static", "mapping": mapping, "changes": 0, "advice": ""}
    assert (service.as_record(), run.preferred) == ({}, [])


async def test_advise_says_what_would_be_better(run: Run):
    service = run.serve(configured(affinity="advise"))
    assert service.as_record() == {"affinity": {"advice": "", "gain": 0.0, "changes": 0}}
    for _ in range(4):
        await as_declared(run, service)
    record = service.as_record()["affinity"]
    assert record["advice"].startswith("lake on H800, sums on H20: generation ")
    assert record["gain"] > 0.1
    assert service.as_summary()["affinity"]["advice"] == record["advice"]
    assert run.preferred == []


async def test_advice_that_gains_too_little_is_not_given(run: Run):
    service = run.serve(configured(affinity="advise", min_gain=0.9))
    await as_declared(run, service)
    assert service.as_record()["affinity"]["gain"] > 0
    assert service.as_record()["affinity"]["advice"] == ""


async def test_auto_binds_each_tag_to_the_better_class(run: Run):
    config = configured(affinity="auto")
    resources = ResourceService(run.bus, run.view, config, run.directory, 1)
    service = run.serve(config, prefer=resources.prefer)
    await as_declared(run, service)
    assert resources.bindings[Role.ACTOR_GEN]["lake"].hardware == "H20"
    await as_declared(run, service)
    bound = {tag: resources.bindings[Role.ACTOR_GEN][tag] for tag in BETTER}
    assert {tag: binding.hardware for tag, binding in bound.items()} == BETTER
    assert {binding.source for binding in bound.values()} == {"the profiler"}
    assert "by what it took on H20" in bound["lake"].reason
    affinity = service.as_summary()["affinity"]
    assert (affinity["mapping"], affinity["changes"], affinity["advice"]) == (BETTER, 1, "")


async def test_a_mapping_that_is_the_declared_one_again_is_nobody_s_preference(run: Run):
    service = run.serve(configured(affinity="auto", settle_steps=1))
    await as_declared(run, service)
    assert [mapping for mapping, _ in run.preferred] == [BETTER]
    slow = {"sums": SUMS_ON_H800.plus(TagUsage(decode_s=200.0))}
    fast = {"lake": LAKE_ON_H20.plus(TagUsage(prefill_s=200.0))}
    for _ in range(2):
        await run.step(service, gen_a=fast, gen_b=slow)
    assert [mapping for mapping, _ in run.preferred] == [BETTER, {}]
    assert "measured" in run.preferred[1][1]


async def test_a_worker_that_does_not_answer_is_left_out_and_made_up_for(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(profiler_service, "_ANSWER_DEADLINE_S", 1.0)
    Counting.silent.add("gen_b")
    service = run.serve(configured())
    await as_declared(run, service)
    profile = read_profile(run.directory)
    assert profile is not None
    assert [speed.tag for speed in profile.speeds] == ["sums"]
    Counting.silent.clear()
    await as_declared(run, service)
    profile = read_profile(run.directory)
    assert profile is not None
    assert {speed.tag: speed.num_requests for speed in profile.speeds} == {"lake": 200, "sums": 200}


async def test_nothing_is_mapped_to_a_class_that_is_not_declared(run: Run):
    await run.start("guest", "H200")
    Counting.counters["guest"] = {"lake": TagUsage(num_requests=20, num_prompt_tokens=20_000, prefill_s=0.01)}
    service = run.serve(configured(affinity="auto", settle_steps=1))
    await as_declared(run, service)
    assert [mapping for mapping, _ in run.preferred] == [BETTER]


async def test_a_later_attempt_acts_on_what_an_earlier_one_measured(run: Run):
    first = run.serve(configured())
    await as_declared(run, first)
    Counting.counters.clear()
    second = run.serve(configured(affinity="auto", settle_steps=1))
    few = TagUsage(num_requests=1, num_prompt_tokens=10, num_new_tokens=1, prefill_s=1e-3)
    await run.step(second, gen_a={"sums": few})
    assert [mapping for mapping, _ in run.preferred] == [BETTER]


async def test_trajectories_are_measured_by_tag_and_failed_ones_are_not(run: Run):
    service = run.serve(configured())
    ticket = Ticket(trajectory_id="t", group_id="g", task="lake", seed=0, admitted_version=0)
    seconds = {"reset": 1.0, "step": 2.0, "generate": 50.0, "reward": 0.5}
    service.finished(trajectory(ticket, num_turns=6, seconds=seconds))
    service.finished(trajectory(ticket, num_turns=1, failure="environment died"))
    await as_declared(run, service)
    lake = service.as_summary()["profile"]["lake"]
    assert (lake["turns"], lake["environment_s"], lake["reward_s"]) == (6, 3.0, 0.5)


async def test_a_profile_that_cannot_be_read_or_written_costs_a_warning(run: Run, caplog: pytest.LogCaptureFixture):
    (run.directory / "profile.json").write_text("?")
    service = run.serve(configured())
    assert "measured anew" in caplog.text
    (run.directory / "profile.json").unlink()
    (run.directory / ".profile.json").mkdir()
    Counting.counters["gen_a"] = {"sums": SUMS_ON_H800}
    for requests in (100, 200):
        service.stepped()
        async with asyncio.timeout(10):
            while caplog.text.count("CANNOT BE WRITTEN") < requests // 100:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        Counting.counters["gen_a"] = {"sums": SUMS_ON_H800.plus(SUMS_ON_H800)}
    assert service.as_summary()["profile"]["sums"]["hardware"]["H800"]["requests"] == 100
