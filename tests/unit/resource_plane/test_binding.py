"""Where the work of each role goes: declarations, live workers, and what changes when workers come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.bus.membership import Member
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.resource_plane.binding import Declared, Demands, bind, changes
from rollart_hpc.resource_plane.records import Binding
from rollart_hpc.types import Role
from tests.builders import run_config

CLASSES = ("H800", "H20", "cpu")
CONFIG = Declared(hardware={"lake": "H800", "default": "H20"}, source="affinity.{tag}")
OF_CLASS = Declared(hardware={"lake": "cpu", "default": "cpu"}, source="hw_affinity.{tag} of Hetero.generate")
SUMS_ALONE = Declared(hardware={"sums": "H20"}, source="affinity.{tag}")
PROFILER = Declared(hardware={"lake": "H20"}, source="the profiler", reason="30 % faster")
names = st.sampled_from([f"actor_gen-{number}" for number in range(5)])
workers = st.dictionaries(names, st.tuples(st.sampled_from(CLASSES), st.booleans()), max_size=5).map(
    lambda states: [gen(name, hardware, leaving=leaving) for name, (hardware, leaving) in states.items()]
)
declarations = st.lists(
    st.builds(
        Declared,
        hardware=st.dictionaries(st.sampled_from(["lake", "sums", "default"]), st.sampled_from([*CLASSES, "absent"])),
        source=st.just("x.{tag}"),
    ),
    max_size=3,
)


def gen(name: str, hardware: str, **changes) -> Member:
    return Member(member_id=name, role=Role.ACTOR_GEN, hardware=hardware, node="n", pid=1, **changes)


def run(**tasks) -> RunConfig:
    return run_config(tasks=tasks or {"lake": {}, "sums": {}})


def demands(
    *generation: Declared, config: RunConfig | None = None, serverless: dict[str, str] | None = None
) -> Demands:
    return Demands.of(config or run(), generation, serverless or {})


def bound(demanded: Demands, members, before=None, known=(), at=1.0) -> dict[str, Binding]:
    return bind(demanded, members, {Role.ACTOR_GEN: before or {}}, known=known, at=at)[Role.ACTOR_GEN]


def test_each_tag_has_the_class_that_the_config_asks_for():
    found = bound(demands(CONFIG), [gen("a", "H800"), gen("b", "H20")])
    assert {tag: (one.hardware, one.source, one.reason) for tag, one in found.items()} == {
        "lake": ("H800", "affinity.lake", "affinity.lake asks for H800"),
        "sums": ("H20", "affinity.default", "affinity.default asks for H20"),
        "default": ("H20", "affinity.default", "affinity.default asks for H20"),
    }


def test_a_task_s_own_tag_is_bound_instead_of_its_name():
    config = run(a={"tag": "lake"}, b={"tag": "lake"})
    assert list(bound(demands(CONFIG, config=config), [])) == ["lake", "default"]


@pytest.mark.parametrize(
    ("generation", "hardware", "source"),
    [
        ((CONFIG, OF_CLASS), "H800", "affinity.lake"),
        ((OF_CLASS,), "cpu", "hw_affinity.lake of Hetero.generate"),
        ((SUMS_ALONE, OF_CLASS), "cpu", "hw_affinity.lake of Hetero.generate"),
        ((PROFILER, CONFIG), "H20", "the profiler"),
        ((), "", ""),
    ],
    ids=["config", "class", "config is silent", "profiler", "nobody"],
)
def test_the_strongest_declaration_that_says_anything_of_a_tag_wins(generation, hardware: str, source: str):
    lake = bound(demands(*generation), [gen(name, name) for name in CLASSES])["lake"]
    assert (lake.preferred, lake.hardware, lake.source) == (hardware, hardware, source)


def test_the_profiler_s_reason_is_told():
    assert bound(demands(PROFILER), [gen("a", "H20")])["lake"].reason == "the profiler asks for H20: 30 % faster"


def test_without_a_declaration_any_worker_serves():
    found = bound(demands(), [gen("a", "H800"), gen("b", "H20")])["lake"]
    assert (found.hardware, found.reason) == ("", "nothing is declared; H20 and H800 serve")
    assert bound(demands(), [gen("a", "H800")])["lake"].hardware == "H800"


def test_a_class_without_live_workers_is_replaced_at_once_and_serves_again_when_it_is_back():
    demanded, both = demands(CONFIG), [gen("a", "H800"), gen("b", "H20")]
    first = bound(demanded, both, at=1.0)
    lost = bound(demanded, both[1:], first, known=CLASSES, at=2.0)
    assert (lost["lake"].hardware, lost["lake"].reason) == ("H20", "H800 has no live actor_gen worker; H20 serves")
    back = bound(demanded, both, lost, known=CLASSES, at=3.0)
    assert (back["lake"].hardware, back["lake"].reason) == ("H800", "H800 is back; affinity.lake asks for it")
    assert back["sums"] is first["sums"]
    assert bound(demanded, both, back, known=CLASSES, at=4.0) == back


def test_a_class_that_comes_for_the_first_time_is_not_back():
    demanded = demands(CONFIG)
    before = bound(demanded, [gen("b", "H20")])
    found = bound(demanded, [gen("a", "H800"), gen("b", "H20")], before, known={"H20"})
    assert found["lake"].reason == "affinity.lake asks for H800"


def test_a_worker_that_leaves_takes_nothing_new():
    found = bound(demands(CONFIG), [gen("a", "H800", leaving=True), gen("b", "H20")])
    assert found["lake"].hardware == "H20"


def test_no_worker_at_all_is_said():
    found = bound(demands(CONFIG), [])["lake"]
    assert (found.preferred, found.hardware, found.reason) == ("H800", "", "no actor_gen worker is alive")


def test_the_other_roles_are_where_the_pools_put_them():
    trainer = Member(member_id="t", role=Role.ACTOR_TRAIN, hardware="cpu", node="n", pid=1)
    found = bind(demands(), [trainer], at=1.0)
    train, environment = found[Role.ACTOR_TRAIN]["default"], found[Role.ENVIRONMENT]["default"]
    assert (train.hardware, train.source, train.reason) == ("cpu", "pools", "pools.all has the actor_train workers")
    assert (environment.preferred, environment.hardware) == ("cpu", "")
    assert environment.reason == "no environment worker is alive"


def test_a_reward_behind_a_url_is_serverless_and_falls_back_on_the_pool():
    demanded = demands(serverless={"lake": "tasks.lake.reward_url"})
    judge = Member(member_id="r", role=Role.REWARD, hardware="cpu", node="n", pid=1)
    without = bind(demanded, [], at=1.0)
    found = bind(demanded, [judge], without, at=2.0)[Role.REWARD]
    assert set(found) == {"default", "lake"}
    assert without[Role.REWARD]["lake"].reason.endswith("no reward worker is alive for when it fails")
    assert (found["lake"].hardware, found["lake"].source) == ("serverless", "tasks.lake.reward_url")
    assert found["lake"].reason == "tasks.lake.reward_url is called; cpu when it fails"


@given(declarations, st.lists(workers, min_size=1, max_size=5))
def test_a_tag_is_bound_to_what_it_asks_for_exactly_when_that_is_alive(generation, course):
    demanded, before = demands(*generation), {}
    for at, members in enumerate(course):
        after = bind(demanded, members, before, known=CLASSES, at=float(at))
        alive = {member.hardware for member in members if not member.leaving}
        for one in after[Role.ACTOR_GEN].values():
            if one.preferred in alive:
                assert one.hardware == one.preferred
            else:
                assert one.hardware == (next(iter(alive)) if len(alive) == 1 else "")
        assert bind(demanded, members, after, known=CLASSES, at=99.0) == after
        changed = changes(before, after)
        assert all(one.at == at for one in changed)
        same = [one for by_tag in after.values() for one in by_tag.values() if one not in changed]
        assert all(one.at < at for one in same)
        before = after
