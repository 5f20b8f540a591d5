"""Cluster: the proxy and controller of one role's workers (paper sections 5.1 and 5.3, Listing 2).

`call` is the typed form; the paper's attribute form (``cluster.method(...)``) is bound at construction from the
Worker class's declarations. The workers of a cluster are the live members of its role: one that joins is called
from then on, one that ends is not.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from rollart_hpc.bus import codec
from rollart_hpc.bus.calls import call
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.data_plane.declarations import Mode, Registered, declared, declared_methods
from rollart_hpc.data_plane.worker import Worker, result_type
from rollart_hpc.errors import NotReachableError, WorkerDeclarationError

W = TypeVar("W", bound=Worker)
P = ParamSpec("P")
R = TypeVar("R")
DEFAULT_DEADLINE_S = 600.0


class Cluster(Generic[W]):
    """All live workers of one class."""

    def __init__(self, worker_class: type[W], bus: Bus, view: MemberView) -> None:
        self.worker_class = worker_class
        self._bus, self._view = bus, view
        self._in_flight: defaultdict[str, set[asyncio.Future[bytes]]] = defaultdict(set)
        view.listen(self._member_changed)
        self._bind_worker_methods()

    def _bind_worker_methods(self) -> None:
        for name in self._registered():
            setattr(self, name, partial(self.call, getattr(self.worker_class, name)))

    def _registered(self) -> list[str]:
        methods = declared_methods(self.worker_class).items()
        return [name for name, declaration in methods if isinstance(declaration, Registered)]

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, list[Any]]]:
        raise AttributeError(
            f"{self.worker_class.__name__} has no registered method {name!r}; it has {sorted(self._registered())}"
        )

    def members(self) -> list[Member]:
        """The live workers, by rank and id."""
        return self._view.of_role(self.worker_class.role)

    async def call(
        self, method: Callable[Concatenate[W, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> list[R]:
        """Runs a registered method on the workers that its mode names.

        Args:
            method: ``WorkerClass.method``. In the mode split_dp its first argument is given as a list with one
                item per data-parallel rank.
            *args: positional arguments; keyword arguments do not travel.
            **kwargs: refused.

        Returns:
            One result per called worker, in rank order.

        Raises:
            NotReachableError: no worker is there, or one did not answer.
            RemoteError: the method raised on a worker; all others have ended by then.
            WorkerDeclarationError: the method is not registered, or the arguments do not fit its mode.
        """
        mode = _mode_of(method, kwargs)
        members = self.members()
        if not members:
            raise NotReachableError(f"no {self.worker_class.role} worker is there to run {method.__qualname__}")
        if mode is Mode.RANK_ZERO:
            members = members[:1]
        arguments = _arguments_by_member(members, mode, method.__qualname__, args)
        calls = [
            self._send(member.member_id, method, encoded) for member, encoded in zip(members, arguments, strict=True)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results  # pyright: ignore[reportReturnType]

    async def call_one(
        self,
        member_id: str,
        method: Callable[Concatenate[W, P], Awaitable[R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Runs a registered method on one worker, whatever its mode.

        Raises:
            NotReachableError: it did not answer.
            RemoteError: the method raised.
            WorkerDeclarationError: the method is not registered, or there are keyword arguments.
        """
        _mode_of(method, kwargs)
        return await self._send(member_id, method, codec.encode(args))

    async def _send(self, member_id: str, method: Callable[..., Awaitable[R]], arguments: bytes) -> R:
        sending = asyncio.ensure_future(
            call(self._bus, member_id, method.__name__, arguments, deadline_s=DEFAULT_DEADLINE_S)
        )
        self._in_flight[member_id].add(sending)
        try:
            await asyncio.wait({sending})
        finally:
            self._in_flight[member_id].discard(sending)
            sending.cancel()
        if sending.cancelled():
            raise NotReachableError(f"{member_id}.{method.__name__}: the worker ended before it answered")
        return codec.decode(sending.result(), result_type(method))

    def _member_changed(self, before: Member | None, after: Member | None) -> None:
        """Nobody waits for the answer of a process that is gone."""
        if before is not None and (after is None or after.incarnation != before.incarnation):
            for sending in self._in_flight[before.member_id]:
                sending.cancel()


def _mode_of(method: Callable[..., Any], kwargs: Mapping[str, Any]) -> Mode:
    declaration = declared(method)
    if not isinstance(declaration, Registered) or kwargs:
        raise WorkerDeclarationError(
            f"{method.__qualname__}: expected a method with @register and positional arguments"
        )
    return declaration.mode


def _arguments_by_member(members: Sequence[Member], mode: Mode, name: str, args: tuple[Any, ...]) -> list[bytes]:
    if mode is not Mode.SPLIT_DP:
        return [codec.encode(args)] * len(members)
    ranks = sorted({member.group_rank for member in members})
    shares = args[0] if args else None
    if not isinstance(shares, list) or list(range(len(shares))) != ranks:  # pyright: ignore[reportUnknownArgumentType]
        got = f"{len(shares)} items" if isinstance(shares, list) else type(shares).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise WorkerDeclarationError(
            f"{name}: split_dp takes a list with one item per data-parallel rank, here {ranks}; got {got}"
        )
    return [codec.encode((shares[member.group_rank], *args[1:])) for member in members]
