"""Worker: the unit of execution on one piece of hardware (paper section 5.1).

A Worker's life: constructed with its context, `setup` (engines, models), joined as a member, serving calls of its
declared methods beside its own `run`, `close`. The process ends when the worker's tasks end, when it is told to
stop, or when a newer process takes its name.

Async methods run on the worker's event loop, plain ones in a thread (`rollart_hpc.data_plane.plain_methods`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from rollart_hpc.bus import codec
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.bus.rendezvous import own_address
from rollart_hpc.bus.server import BusEndpoint
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.declaration_checks import check_declarations
from rollart_hpc.data_plane.declarations import Serverless, declared, declared_methods
from rollart_hpc.data_plane.method_types import decode_arguments
from rollart_hpc.data_plane.plain_methods import run_in_thread
from rollart_hpc.errors import BusError
from rollart_hpc.rewards.serverless_function import ServerlessFunction
from rollart_hpc.types import Role
from rollart_hpc.weights.store import StoreEndpoint, WeightStore

T = TypeVar("T")
_MAX_THREADS = 256
"""Plain methods that run at the same time; a thread costs memory only once it was needed."""

_LOOK_AGAIN_S = 0.05


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of one attempt knows; written by the leader, readable by its user only."""

    run_directory: str
    number: int
    bus: BusEndpoint
    store: StoreEndpoint | None
    config: dict[str, Any]
    """The run's config with all overrides, as `RunConfig.model_validate` takes it."""
    announces: bool = False
    """Whether the controller tells the leader of every protocol step and waits for its answer (fault injection)."""
    model: dict[str, str] = {}
    """What the model is known by, as `rollart_hpc.control_plane.model_identity` has it: whoever joins must have it."""

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

    def write(self, name: str = "attempt.json") -> Path:
        """Writes the record where its processes look for it."""
        path = self.directory / name
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
    context: WorkerContext
    """What it was given."""
    member: Member
    """This worker's entry among the members; what `setup` and calls change of it is published."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_declarations(cls, Worker)

    def __init__(self, context: WorkerContext) -> None:
        self.context, self.member = context, context.member
        self._threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="plain")
        config = context.config
        for declaration in declared_methods(type(self)).values():
            if isinstance(declaration, Serverless):
                declared_url = declaration.serverless_url
                function = ServerlessFunction(
                    declared_url,
                    url=config.serverless.get(declared_url),
                    timeout_s=config.rollout.reward_timeout_s,
                )
                setattr(self, declaration.attribute, function)

    async def setup(self) -> None:
        """Gets ready to serve; the worker joins the members afterwards."""

    async def connect_store(self) -> WeightStore | None:
        """A client of the attempt's weight store, for the worker to close; None where the attempt has no store."""
        endpoint = self.context.attempt.store
        if endpoint is None:
            return None
        return await asyncio.to_thread(WeightStore.connect, endpoint, host=own_address(self.context.bus))

    async def run(self) -> None:
        """The worker's own services; when it returns, the worker has done its work."""
        raise NotImplementedError

    async def hand_over(self) -> None:
        """Ends what it has, or gives it to others, before it leaves a running run; nothing new comes any more.

        The caller bounds it: what is left then is lost with the worker, and others do it again.
        """
        while self.num_busy:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def close(self) -> None:
        """Frees what `setup` took; bounded."""

    @property
    def num_busy(self) -> int:
        """How much of its capacity is busy; others see it when the membership is renewed."""
        return 0

    def present(self) -> Member:
        """This worker's entry among the members, as it is now."""
        self.member = msgspec.structs.replace(self.member, load=self.num_busy)
        return self.member

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs ``work`` where this worker's plain methods run; in it `get` waits for what is async."""
        return await run_in_thread(self._threads, work)

    async def invoke(self, method: Callable[..., Any], *values: Any) -> Any:
        """Calls one of the worker's methods, async or plain."""
        if inspect.iscoroutinefunction(method):
            return await method(*values)
        result = await self.in_thread(partial(method, *values))
        return await result if inspect.isawaitable(result) else result

    async def handle_call(self, method_name: str, arguments: bytes) -> bytes:
        """Runs one call of a declared method, arguments and result encoded.

        Raises:
            BusError: the method is not declared for calls, or the arguments do not fit its annotations.
        """
        method = getattr(self, method_name, None)
        if method is None or declared(method) is None:
            raise BusError(f"{type(self).__name__} declares no method {method_name!r}; see register()")
        return codec.encode(await self.invoke(method, *decode_arguments(method, arguments)))
