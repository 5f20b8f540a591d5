"""Worker: the unit of execution on one piece of hardware (paper section 5.1).

A Worker's life: constructed with its context, `setup` (engines, models), joined as a member, serving calls of its
declared methods beside its own `run`, `close`. The process ends when the worker's tasks end, when it is told to
stop, or when a newer process takes its name.
"""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.bus.server import BusEndpoint
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.declarations import Serverless, check_declarations, declared, declared_methods
from rollart_hpc.errors import BusError
from rollart_hpc.rewards.serverless_function import ServerlessFunction
from rollart_hpc.types import Role
from rollart_hpc.weights.server import StoreEndpoint


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of one attempt knows; written by the leader, readable by its user only."""

    run_directory: str
    number: int
    bus: BusEndpoint
    store: StoreEndpoint | None
    config: dict[str, Any]
    """The run's config with all overrides, as `RunConfig.model_validate` takes it."""

    @property
    def directory(self) -> Path:
        """``RUN/attempts/N``."""
        return Path(self.run_directory) / "attempts" / str(self.number)

    @property
    def failures(self) -> Path:
        """Where its processes write why they failed."""
        return self.directory / "failures"

    def run_config(self) -> RunConfig:
        """The validated config."""
        return RunConfig.model_validate(self.config, strict=False)

    def write(self) -> Path:
        """Writes the record where its processes look for it."""
        path = self.directory / "attempt.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(self))
        return path

    @staticmethod
    def read(path: Path) -> Attempt:
        """The record at ``path``."""
        return msgspec.json.decode(path.read_bytes(), type=Attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a worker is given."""

    attempt: Attempt
    config: RunConfig
    bus: Bus
    view: MemberView
    member: Member


class Worker:
    """Base of the four roles; subclasses declare methods that a Cluster calls."""

    role: ClassVar[Role]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_declarations(cls)

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.member = context.member
        """This worker's entry among the members; what `setup` and calls change of it is published."""
        for declaration in declared_methods(type(self)).values():
            if isinstance(declaration, Serverless):
                timeout_s = context.config.rollout.reward_timeout_s
                setattr(
                    self, declaration.attribute, ServerlessFunction(declaration.serverless_url, timeout_s=timeout_s)
                )

    async def setup(self) -> None:
        """Gets ready to serve; the worker joins the members afterwards."""

    async def run(self) -> None:
        """The worker's own services; when it returns, the worker has done its work."""
        raise NotImplementedError

    async def close(self) -> None:
        """Frees what `setup` took; bounded."""

    async def handle_call(self, method_name: str, arguments: bytes) -> bytes:
        """Runs one call of a declared method, arguments and result encoded.

        Raises:
            BusError: the method is not declared for calls, or the arguments do not fit its annotations.
        """
        method = getattr(self, method_name, None)
        if method is None or declared(method) is None:
            raise BusError(f"{type(self).__name__} declares no method {method_name!r}; see register()")
        result = method(*decode_arguments(method, arguments))
        if inspect.isawaitable(result):
            result = await result
        return codec.encode(result)


def decode_arguments(method: Any, arguments: bytes) -> list[Any]:
    """The values of a bound method's positional parameters; those with a default may be missing at the end.

    Raises:
        BusError: they do not fit the parameters; the text says which.
    """
    hints = typing.get_type_hints(inspect.unwrap(method))
    parameters = list(inspect.signature(method).parameters.values())
    values = codec.decode(arguments, list[msgspec.Raw])
    required = [one.name for one in parameters if one.default is one.empty]
    if not len(required) <= len(values) <= len(parameters):
        raise BusError(f"{method.__name__} takes {[one.name for one in parameters]}, got {len(values)} arguments")
    decoded: list[Any] = []
    for value, parameter in zip(values, parameters, strict=False):
        try:
            decoded.append(codec.decode(memoryview(value), hints.get(parameter.name, Any)))
        except msgspec.ValidationError as error:
            raise BusError(f"{method.__name__}: argument {parameter.name!r}: {error}") from error
    return decoded


def result_type(method: Any) -> Any:
    """What a method's annotations say it returns; Any where they say nothing."""
    return typing.get_type_hints(inspect.unwrap(method)).get("return", Any)
