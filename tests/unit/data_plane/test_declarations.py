"""Declarations are checked when the class is created; what is wrong is said there and then."""

import re
from collections.abc import Callable
from types import FunctionType

import pytest

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
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.errors import WorkerDeclarationError
from rollart_hpc.types import Role


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


def test_declarations_are_inherited_and_can_be_declared_anew():
    class Split(ActorTrain):
        @register(Mode.SPLIT_DP)
        def compute_gradients(self, batch: list[int]) -> float:
            return 0.0

        @register(Mode.RANK_ZERO)
        def save(self) -> None: ...

    class Further(Split):
        pass

    assert declared_methods(Further) == {
        "compute_gradients": Registered(Mode.SPLIT_DP),
        "save": Registered(Mode.RANK_ZERO),
    }
    assert declared_methods(ActorTrain) == {"compute_gradients": Registered(Mode.EXECUTE_ALL)}


def test_an_undeclared_override_is_not_called_from_outside():
    class Hidden(ActorTrain):
        def compute_gradients(self, batch: list[int]) -> float:
            return 0.0

    assert declared_methods(Hidden) == {}
    assert declared(Hidden.compute_gradients) is None


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: register("everywhere"), "register(mode='everywhere'): expected one of ['execute_all', 'rank_zero'"),
        (lambda: register(lambda self: None), "expected one of ['execute_all'"),  # pyright: ignore
        (lambda: register(["execute_all"]), "expected one of ['execute_all'"),  # pyright: ignore
        (lambda: hw_mapping({"FrozenLake": "H800"}), "the key 'default' is missing"),
        (lambda: hw_mapping({}), "the key 'default' is missing"),
        (lambda: hw_mapping({"default": None}), "expected names for names"),  # pyright: ignore
        (lambda: hw_mapping({"default": "H20", "": "H800"}), "expected names for names"),
        (lambda: hw_mapping("H800"), "hw_mapping(hw_affinity='H800'): expected a mapping"),  # pyright: ignore
        (lambda: hw_mapping(lambda self: None), "expected a mapping"),  # pyright: ignore
        (lambda: register_serverless("reward-proxy", "https://x"), "attribute='reward-proxy'): expected an attribute"),
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
def with_keyword_only(self, a: int, *, b: int) -> None: ...
def with_any_number(self, *values: int) -> None: ...
def with_any_names(self, **values: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "method", "decorator", "said"),
    [
        ("step", split_without_arguments, register(Mode.SPLIT_DP), "Bad.step: split_dp needs a first argument"),
        ("generate", mapped_without_tag, hw_mapping({"default": "H20"}), "needs a parameter named 'tag_name'"),
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


def test_a_method_takes_one_declaration():
    with pytest.raises(WorkerDeclarationError, match="has two declarations; a method takes one"):

        class Twice(Worker):  # pyright: ignore[reportUnusedClass]
            @register()
            @hw_mapping({"default": "H20"})
            def generate(self, tag_name: str) -> None: ...
