"""Declarations are checked when the class is created; what is wrong is said there and then."""

import re
from collections.abc import Callable
from types import FunctionType

import pytest

from rollart_hpc.data_plane.actor_gen import ActorGenCls
from rollart_hpc.data_plane.actor_train import ActorTrainCls
from rollart_hpc.data_plane.declarations import (
    HardwareMapped,
    Mode,
    Registered,
    Serverless,
    declared,
    declared_methods,
    hw_mapping,
    register,
    register_serverless,
)
from rollart_hpc.data_plane.reward_worker import RewardCls
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.errors import WorkerDeclarationError
from rollart_hpc.types import Role, StoredBatch, TrainBatch, TrainStats


class ActorTrain(Worker):
    role = Role.ACTOR_TRAIN

    @register(mode="execute_all")
    def compute_gradients(self, batch: list[int]) -> float:
        return float(sum(batch))


class HeteroActorGen(Worker):
    role = Role.ACTOR_GEN

    @hw_mapping(hw_affinity={"FrozenLake": "H800", "default": "H20"})
    def generate(self, prompts: list[str], tag_name: str) -> list[str]:
        return prompts


class ServerlessReward(Worker):
    role = Role.REWARD

    @register_serverless(attribute="reward_proxy", serverless_url="fc://compute_rewards")
    def compute_rewards(self, responses: list[str]) -> list[float]:
        return [0.0 for _ in responses]


def test_the_three_shapes_of_the_paper_are_declared():
    assert declared_methods(ActorTrain) == {"compute_gradients": Registered(Mode.EXECUTE_ALL)}
    (mapped,) = declared_methods(HeteroActorGen).values()
    assert isinstance(mapped, HardwareMapped)
    assert [mapped.hardware_for(tag) for tag in ("FrozenLake", "arithmetic", "default")] == ["H800", "H20", "H20"]
    assert declared_methods(ServerlessReward) == {
        "compute_rewards": Serverless("reward_proxy", "fc://compute_rewards"),
    }


def test_a_declared_method_is_the_method_itself():
    assert ActorTrain.compute_gradients(None, [1, 2]) == 3.0  # pyright: ignore
    assert ActorTrain.compute_gradients.__qualname__ == "ActorTrain.compute_gradients"


def test_declarations_are_inherited_and_further_ones_come_with_them():
    class Saving(ActorTrain):
        @register(Mode.RANK_ZERO)
        def save(self) -> None: ...

    class Further(Saving):
        pass

    assert declared_methods(Further) == {
        "compute_gradients": Registered(Mode.EXECUTE_ALL),
        "save": Registered(Mode.RANK_ZERO),
    }
    assert declared_methods(ActorTrain) == {"compute_gradients": Registered(Mode.EXECUTE_ALL)}


def test_an_override_keeps_the_declaration_of_what_it_overrides():
    class Mine:
        def compute_gradients(self, batch: list[int]) -> float:
            return 0.0

    class Mixed(Mine, ActorTrain):
        pass

    class OfTheRole(ActorTrainCls):
        async def train_step(self, batch: TrainBatch | StoredBatch, extra: int = 0) -> TrainStats:
            return await super().train_step(batch)

        def probe(self, token_ids: list[int]) -> list[float]:
            return []

    assert declared_methods(Mixed) == declared_methods(ActorTrain)
    assert declared_methods(OfTheRole) == declared_methods(ActorTrainCls)
    assert declared(OfTheRole.train_step) == Registered(Mode.SPLIT_DP)
    assert declared(OfTheRole.probe) == Registered(Mode.EXECUTE_ALL)


def test_a_mapping_can_be_declared_anew():
    class Other(HeteroActorGen):
        @hw_mapping({"default": "H800"})
        def generate(self, prompts: list[str], tag_name: str) -> list[str]:
            return prompts

    assert declared_methods(Other) == {"generate": HardwareMapped({"default": "H800"})}


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: register("everywhere"), "register(mode='everywhere'): expected one of ['execute_all', 'rank_zero'"),
        (lambda: register(lambda self: None), "expected one of ['execute_all'"),  # pyright: ignore
        (lambda: register(["execute_all"]), "expected one of ['execute_all'"),  # pyright: ignore
        (lambda: hw_mapping({"FrozenLake": "H800"}), "the key 'default' is missing"),
        (lambda: hw_mapping({}), "the key 'default' is missing"),
        (lambda: hw_mapping({"default": None}), "expected tags and hardware classes"),  # pyright: ignore
        (lambda: hw_mapping({"default": "H20", "": "H800"}), "expected tags and hardware classes"),
        (lambda: hw_mapping("H800"), "hw_mapping(hw_affinity='H800'): expected a mapping"),  # pyright: ignore
        (lambda: hw_mapping(lambda self: None), "expected a mapping"),  # pyright: ignore
        (lambda: register_serverless("reward-proxy", "https://x"), "attribute='reward-proxy'): expected an attribute"),
        (
            lambda: register_serverless("_proxy", "https://x"),
            "attribute='_proxy'): expected an attribute's name, without",
        ),
        (lambda: register_serverless(None, "https://x"), "attribute=None): expected an attribute"),  # pyright: ignore
        (lambda: register_serverless("class", "https://x"), "attribute='class'): expected an attribute"),
        (lambda: register_serverless("proxy", "x.com/score"), "serverless_url='x.com/score'): expected a URL"),
        (lambda: register_serverless("proxy", None), "serverless_url=None): expected a URL"),  # pyright: ignore
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_wrong_arguments_of_a_decorator_say_what_is_expected(declare: Callable[[], object], said: str):
    with pytest.raises(WorkerDeclarationError, match=re.escape(said)):
        declare()


def split_without_arguments(self) -> None: ...
def mapped_without_tag(self, prompts: list[str]) -> None: ...
def plain(self) -> None: ...
def with_keyword_tag(self, *, tag_name: str) -> None: ...
def with_keyword_only(self, a: int, *, b: int) -> None: ...
def with_any_number(self, *values: int) -> None: ...
def with_any_names(self, **values: int) -> None: ...


def plain_with(*names: str) -> FunctionType:
    namespace: dict[str, FunctionType] = {}
    exec(f"def method({', '.join(['self', *names])}): ...", namespace)
    return namespace["method"]


@pytest.mark.parametrize(
    ("name", "method", "decorator", "said"),
    [
        ("step", split_without_arguments, register(Mode.SPLIT_DP), "Bad.step: split_dp needs a first argument"),
        ("generate", mapped_without_tag, hw_mapping({"default": "H20"}), "needs a parameter named 'tag_name'"),
        ("generate", with_keyword_tag, hw_mapping({"default": "H20"}), "Bad.generate: 'tag_name' cannot be given"),
        ("setup", plain, register(), "Bad.setup: 'setup' is a part of every worker's life"),
        ("handle_call", plain, register(), "Bad.handle_call: 'handle_call' is a part of every worker's life"),
        ("save", plain, register_serverless("member", "https://x"), "attribute='member') would hide Bad.member"),
        ("save", plain, register_serverless("run", "https://x"), "attribute='run') would hide Bad.run"),
        ("call", plain, register(), "Bad.call: 'call' is a name of Cluster itself"),
        ("members", plain, register(), "Bad.members: 'members' is a name of Cluster itself"),
        ("_send", plain, register(), "Bad._send: '_send' is a name of Cluster itself"),
        ("save", with_keyword_only, register(), "Bad.save: 'b' cannot be given; arguments travel by position"),
        ("save", with_any_number, register(), "Bad.save: 'values' cannot be given"),
        ("save", with_any_names, register(), "Bad.save: 'values' cannot be given"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_only_the_class_can_tell_is_refused_when_it_is_created(
    name: str, method: Callable[..., None], decorator: Callable[..., object], said: str
):
    fresh = FunctionType(method.__code__, {})
    with pytest.raises(WorkerDeclarationError, match=re.escape(said)):
        type("Bad", (Worker,), {name: decorator(fresh)})


def test_an_inherited_mistake_is_found_in_the_class_that_makes_it():
    class Mixin:
        @register(Mode.SPLIT_DP)
        def step(self) -> None: ...

    with pytest.raises(WorkerDeclarationError, match=r"Mixed\.step: split_dp needs"):
        type("Mixed", (Mixin, Worker), {})


@pytest.mark.parametrize(
    ("base", "name", "value", "said"),
    [
        (ActorTrainCls, "train_step", register()(plain_with("batch")),
         'Bad.train_step: is declared by register(mode="execute_all"), ActorTrainCls.train_step by '
         'register(mode="split_dp"), which its callers go by'),
        (ActorGenCls, "load", hw_mapping({"default": "H20"})(plain_with("version", "tag_name")),
         "Bad.load: is declared by hw_mapping, ActorGenCls.load by register"),
        (ActorTrainCls, "train_step", plain_with(),
         "Bad.train_step: too many positional arguments; it is called as ActorTrainCls.train_step, with ['batch']"),
        (ActorGenCls, "load", plain_with("version", "more"),
         "Bad.load: missing a required argument: 'more'; it is called as ActorGenCls.load, with ['version']"),
        (ActorGenCls, "load", None, "Bad.load = None: ActorGenCls.load is called by others; it can only be overridden"),
        (ActorGenCls, "role", Role.REWARD, "Bad.role = <Role.REWARD: 'reward'>: ActorGenCls has <Role.ACTOR_GEN"),
        (ActorGenCls, "score", register_serverless("model", "https://x")(plain_with()),
         "register_serverless(attribute='model') would hide Bad.model"),
        (HeteroActorGen, "generate", plain_with("prompts", "tag"), "hw_mapping needs a parameter named 'tag_name'"),
        (RewardCls, "compute_rewards", plain_with(), "Bad.compute_rewards: too many positional arguments; it is called "
         "with one argument, the turns of an episode"),
        (RewardCls, "compute_rewards", plain_with("turns", "task"), "missing a required argument: 'task'"),
        (Worker, "name", "x", "Bad has no role; derive it from ActorTrainCls"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_class_that_its_role_s_callers_cannot_call_is_refused(base: type, name: str, value: object, said: str):
    with pytest.raises(WorkerDeclarationError, match=re.escape(said)):
        type("Bad", (base,), {name: value})


def test_one_attribute_is_one_url():
    with pytest.raises(WorkerDeclarationError, match=r"Two\.b: self\.proxy is https://one already"):

        class Two(ServerlessReward):  # pyright: ignore[reportUnusedClass]
            @register_serverless("proxy", "https://one")
            def a(self) -> None: ...

            @register_serverless("proxy", "https://two")
            def b(self) -> None: ...


def test_a_method_takes_one_declaration():
    with pytest.raises(WorkerDeclarationError, match="has two declarations; a method takes one"):

        class Twice(Worker):  # pyright: ignore[reportUnusedClass]
            @register()
            @hw_mapping({"default": "H20"})
            def generate(self, tag_name: str) -> None: ...


def test_what_cannot_be_called_cannot_be_declared():
    for wrong in (staticmethod(lambda x: x), classmethod(lambda x: x), property(lambda x: x), type("A", (), {})):
        with pytest.raises(WorkerDeclarationError, match="directly above the `def`"):
            register()(wrong)  # pyright: ignore


def of_class(**members: object) -> type:
    return type("Bad", (Worker,), {"role": Role.REWARD, "__module__": __name__, **members})


def declared_method(self: object, value: int) -> int:
    return value


def plain(self: object) -> None: ...


def property_of(self: object) -> None: ...


def yielding(self: object):
    yield 1


async def yielding_too(self: object):
    yield 1


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"setup": plain}, "Bad.setup: is awaited; write `async def setup(self)`"),
        ({"close": plain}, "Bad.close: is awaited"),
        ({"__init__": plain}, "Bad.__init__: too many positional arguments"),
        ({"take": register()(yielding)}, "Bad.take: yields"),
        ({"take": register()(yielding_too)}, "Bad.take: yields"),
        ({"take": staticmethod(register()(declared_method))}, "leave @staticmethod out"),
        ({"take": property(register()(property_of))}, "leave @property out"),
    ],
)
def test_a_class_that_could_not_live_is_refused_when_it_is_created(members: dict[str, object], said: str):
    with pytest.raises(WorkerDeclarationError, match=re.escape(said)):
        of_class(**members)
