"""Who waits for whom in one environment worker; the players of these tests do nothing but announce what they do."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from rollart_hpc.config.modes import MODES, Schedule, schedule_of
from rollart_hpc.control_plane.lockstep import Activity, Lockstep, Player

BATCHED = MODES["sync"]


async def begin(player: Player, activity: Activity) -> None:
    if (turn := player.begin(activity)) is not None:
        await turn


class Round:
    """Players whose every activity ends when the test says so."""

    def __init__(self, schedule: Schedule) -> None:
        self.lockstep = Lockstep(schedule)
        self.doing: dict[str, Activity] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def _do(self, name: str, activity: Activity) -> None:
        self.doing[name] = activity
        self._ends[name] = asyncio.Event()
        await self._ends[name].wait()
        del self.doing[name]

    async def _play(self, name: str, num_turns: int) -> None:
        with self.lockstep.player() as player:
            await self._do(name, Activity.APART)
            with player.taking_turns():
                await self._do(name, Activity.RESET)
                for _ in range(num_turns):
                    for activity in (Activity.GENERATE, Activity.STEP):
                        await begin(player, activity)
                        await self._do(name, activity)
            await begin(player, Activity.SCORE)
            await self._do(name, Activity.SCORE)

    def join(self, *names: str, num_turns: int = 2) -> None:
        for name in names:
            self._tasks[name] = asyncio.create_task(self._play(name, num_turns))

    async def end(self, *names: str) -> dict[str, Activity]:
        """What these do ends; returns what everyone does then."""
        for name in names:
            self._ends[name].set()
        return await self.settled()

    async def cancel(self, name: str) -> dict[str, Activity]:
        self._tasks[name].cancel()
        self.doing.pop(name, None)
        return await self.settled()

    async def settled(self) -> dict[str, Activity]:
        for _ in range(10):  # more than any of these events needs
            await asyncio.sleep(0)
        return dict(self.doing)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values())


def round_of(schedule: Schedule = BATCHED, *names: str) -> Round:
    one = Round(schedule)
    one.join(*names)
    return one


async def test_turns_are_taken_together_and_rewards_asked_for_together():
    one = round_of(BATCHED, "a", "b")
    await one.settled()
    await one.end("a", "b")
    assert await one.end("a") == {"b": Activity.RESET}
    assert await one.end("b") == {"a": Activity.GENERATE, "b": Activity.GENERATE}
    assert await one.end("b") == {"a": Activity.GENERATE}
    assert await one.end("a") == {"a": Activity.STEP, "b": Activity.STEP}
    assert await one.end("a") == {"b": Activity.STEP}
    assert await one.end("b") == {"a": Activity.GENERATE, "b": Activity.GENERATE}
    await one.end("a", "b")
    assert await one.end("a") == {"b": Activity.STEP}, "its episode has ended, it waits for the others'"
    assert await one.end("b") == {"a": Activity.SCORE, "b": Activity.SCORE}
    await one.close()


async def test_those_that_come_together_have_their_first_turn_together_however_fast_their_reset_is():
    one = Lockstep(BATCHED)
    together: list[int] = []
    generating = Counter[str]()

    async def play() -> None:
        with one.player() as player, player.taking_turns():
            await begin(player, Activity.GENERATE)
            generating["now"] += 1
            await asyncio.sleep(0)
            together.append(generating["now"])

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(play())
    assert together == [3, 3, 3]


async def test_who_joins_is_waited_for_before_the_next_generation_and_holds_up_no_step():
    one = round_of(BATCHED, "a")
    await one.settled()
    await one.end("a")
    assert await one.end("a") == {"a": Activity.GENERATE}
    one.join("b")
    await one.settled()
    assert await one.end("b") == {"a": Activity.GENERATE, "b": Activity.RESET}
    assert await one.end("a") == {"a": Activity.STEP, "b": Activity.RESET}
    assert await one.end("a") == {"b": Activity.RESET}
    assert await one.end("b") == {"a": Activity.GENERATE, "b": Activity.GENERATE}
    await one.close()


async def test_who_waits_for_an_environment_holds_up_no_turn_but_the_scoring():
    one = round_of(BATCHED, "a", "b")
    await one.settled()
    await one.end("a")
    for activity in (Activity.GENERATE, Activity.STEP) * 2:
        assert await one.end("a") == {"a": activity, "b": Activity.APART}
    assert await one.end("a") == {"b": Activity.APART}
    assert await one.cancel("b") == {"a": Activity.SCORE}
    await one.close()


async def test_who_has_ended_its_episode_holds_up_no_turn_while_its_environment_is_closed():
    one = Lockstep(BATCHED)
    with one.player() as ended, one.player() as other, other.taking_turns():
        with ended.taking_turns():
            turn = other.begin(Activity.GENERATE)
            assert turn is not None
            await asyncio.sleep(0)
            assert not turn.done(), "it resets"
        async with asyncio.timeout(5):
            await turn


@pytest.mark.parametrize("num_ended", [2, 3, 4], ids=["in its reset", "in its generation", "in its step"])
async def test_who_is_cancelled_is_waited_for_no_more(num_ended: int):
    one = round_of(BATCHED, "a", "b")
    await one.settled()
    for _ in range(num_ended - 1):
        await one.end("a", "b")
    await one.end("a")
    assert "a" not in one.doing
    assert set(await one.cancel("b")) == {"a"}
    await one.close()


async def test_at_its_own_pace_nobody_waits():
    one = round_of(MODES["rollart"], "a", "b")
    await one.settled()
    for activity in (Activity.RESET, *(Activity.GENERATE, Activity.STEP) * 2, Activity.SCORE):
        assert await one.end("a") == {"a": activity, "b": Activity.APART}
    await one.close()


@pytest.mark.parametrize("given", [{"interaction": "batched"}, {"scoring": "batched"}], ids=["turns", "scoring"])
async def test_turns_and_scoring_are_batched_apart(given: dict[str, str]):
    one = round_of(schedule_of("rollart", given), "a", "b")
    await one.settled()
    await one.end("a", "b")
    await one.end("a")
    assert ("a" in one.doing) == ("scoring" in given)
    await one.cancel("b")
    for _ in range(4):
        await one.end("a")
    assert one.doing == {"a": Activity.SCORE}
    await one.close()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    "given", [{"interaction": "batched", "scoring": "batched"}, {"interaction": "batched"}, {"scoring": "batched"}]
)
async def test_whoever_joins_ends_fails_or_is_cancelled_at_any_await_nobody_waits_for_ever(
    given: dict[str, str], seed: int
):
    chance = random.Random(seed)
    lockstep = Lockstep(schedule_of("rollart", given))
    doing: Counter[Activity] = Counter()
    playing: set[int] = set()
    tasks: list[asyncio.Task[None]] = []
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

    async def do(activity: Activity) -> None:
        doing[activity] += 1
        try:
            if "interaction" in given:
                assert not (doing[Activity.GENERATE] and doing[Activity.STEP])
            for _ in range(chance.randint(0, 6)):
                await asyncio.sleep(0)
            if chance.random() < 0.05:
                raise TimeoutError
        finally:
            doing[activity] -= 1

    async def episode(player: Player) -> None:
        await do(Activity.APART)
        with player.taking_turns():
            await do(Activity.RESET)
            for _ in range(chance.randint(0, 5)):
                await begin(player, Activity.GENERATE)
                await do(Activity.GENERATE)
                await begin(player, Activity.STEP)
                await do(Activity.STEP)

    async def play(number: int) -> None:
        with lockstep.player() as player:
            playing.add(number)
            try:
                await episode(player)
            finally:
                playing.discard(number)
            await begin(player, Activity.SCORE)
            assert "scoring" not in given or all(later > number for later in playing), "an episode was not over"
            await do(Activity.SCORE)

    async with asyncio.timeout(20):
        for number in range(40):
            if chance.random() < 0.6:
                tasks.append(asyncio.create_task(play(number)))
            if tasks and chance.random() < 0.3:
                chance.choice(tasks).cancel()
            for _ in range(chance.randint(0, 5)):
                await asyncio.sleep(0)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(one) for one in ended} <= {type(None), TimeoutError, asyncio.CancelledError}
    assert not any(doing.values())
    assert faults == []
