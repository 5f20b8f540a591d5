"""Cluster: the proxy and controller of one role's workers (paper sections 5.1 and 5.3, Listing 2).

`call` is the typed form; the paper's attribute form (``cluster.method(...)``) is bound at construction from the
Worker class's declarations. The workers of a cluster are the live members of its role: one that joins is called
from then on, one that ends is not.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from rollart_hpc.bus import codec
from rollart_hpc.bus.calls import call
from rollart_hpc.bus.connection import Bus
from rollart_hpc.bus.membership import Member, MemberView
from rollart_hpc.data_plane.declarations import (
    TAG_PARAMETER,
    Declaration,
    HardwareMapped,
    Mode,
    Registered,
    declared,
    declared_methods,
)
from rollart_hpc.data_plane.method_types import result_type
from rollart_hpc.data_plane.routing import PrefixAffinity, Route, WorkerLoad
from rollart_hpc.data_plane.worker import Worker
from rollart_hpc.errors import NotReachableError, WorkerDeclarationError

W = TypeVar("W", bound=Worker)
P = ParamSpec("P")
R = TypeVar("R")
DEFAULT_DEADLINE_S = 600.0
_PEERS_S = 10.0
"""What the others of a call have when it has failed on one: they may wait for it in a collective."""


class Cluster(Generic[W]):
    """All live workers of one class."""

    def __init__(
        self, worker_class: type[W], bus: Bus, view: MemberView, *, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> None:
        self.worker_class = worker_class
        self._bus, self._view, self._deadline_s = bus, view, deadline_s
        self._in_flight: defaultdict[str, set[asyncio.Future[bytes]]] = defaultdict(set)
        view.listen(self._member_changed)
        self._bind_worker_methods()

    def _bind_worker_methods(self) -> None:
        for name in declared_methods(self.worker_class):
            setattr(self, name, partial(self.call, getattr(self.worker_class, name)))

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, list[Any]]]:
        raise AttributeError(
            f"{self.worker_class.__name__} declares no method {name!r}; it has "
            f"{sorted(declared_methods(self.worker_class))}"
        )

    def members(self) -> list[Member]:
        """The live workers, by rank and id."""
        return self._view.of_role(self.worker_class.role)

    async def call(
        self, method: Callable[Concatenate[W, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> list[R]:
        """Runs a declared method on the workers that its declaration names.

        ``execute_all`` runs on all, ``rank_zero`` on the first; ``split_dp`` takes its first argument as a list with
        one item per data-parallel rank. A method with `hw_mapping` runs on the least busy worker of the hardware that
        its ``tag_name`` is mapped to, or of any hardware while that has none; one with `register_serverless` on the
        least busy worker.

        Returns:
            One result per called worker, in rank order.

        Raises:
            NotReachableError: no worker is there, or one did not answer.
            RemoteError: the method raised on a worker; the others had some seconds to end, too.
            WorkerDeclarationError: the method is not declared, or the arguments do not fit it or its mode.
        """
        declaration, values = _declaration_of(method), _positional(method, args, kwargs)
        members = self._chosen(declaration, method, values)
        if not members:
            raise NotReachableError(f"no {self.worker_class.role} worker is there to run {method.__qualname__}")
        arguments = _arguments_by_member(members, declaration, method.__qualname__, values)
        calls = [
            self._send(member.member_id, method, encoded) for member, encoded in zip(members, arguments, strict=True)
        ]
        return await _all_or_first_failure(calls)

    async def call_one(
        self,
        member_id: str,
        method: Callable[Concatenate[W, P], Awaitable[R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Runs a declared method on one worker, whatever its declaration.

        Raises:
            NotReachableError: it did not answer.
            RemoteError: the method raised.
            WorkerDeclarationError: the method is not declared, or the arguments do not fit it.
        """
        _declaration_of(method)
        return await self._send(member_id, method, codec.encode(_positional(method, args, kwargs)))

    def _chosen(self, declaration: Declaration, method: Callable[..., Any], values: Sequence[Any]) -> list[Member]:
        members = self.members()
        if isinstance(declaration, Registered):
            return members[:1] if declaration.mode is Mode.RANK_ZERO else members
        hardware = None
        if isinstance(declaration, HardwareMapped):
            position = list(inspect.signature(method).parameters).index(TAG_PARAMETER) - 1
            hardware = declaration.hardware_for(values[position])
        loads = {member_id: WorkerLoad(len(calls), len(calls)) for member_id, calls in self._in_flight.items()}
        able = [member for member in members if not member.leaving]
        chosen = PrefixAffinity().choose(Route(hardware=hardware), able, loads)
        return [chosen] if chosen is not None else []

    async def _send(self, member_id: str, method: Callable[..., Awaitable[R]], arguments: bytes) -> R:
        sending = asyncio.ensure_future(
            call(self._bus, member_id, method.__name__, arguments, deadline_s=self._deadline_s)
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


async def _all_or_first_failure(calls: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """The results in order. After a failure the others are not waited for as long as a collective would."""
    sending = [asyncio.ensure_future(one) for one in calls]
    try:
        await asyncio.wait(sending, return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.wait(sending, timeout=_PEERS_S)
        for one in sending:
            if one.done() and (error := one.exception()) is not None:
                raise error
        return [one.result() for one in sending]
    finally:
        for one in sending:
            one.cancel()


def _declaration_of(method: Callable[..., Any]) -> Declaration:
    declaration = declared(method)
    if declaration is None:
        raise WorkerDeclarationError(f"{method.__qualname__}: expected a method with @register or another declaration")
    return declaration


def _positional(method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The call's arguments in the method's order, defaults filled in, without ``self``."""
    try:
        bound = inspect.signature(method).bind(None, *args, **kwargs)
    except TypeError as error:
        raise WorkerDeclarationError(f"{method.__qualname__}: {error}") from error
    bound.apply_defaults()
    if bound.kwargs:
        raise WorkerDeclarationError(
            f"{method.__qualname__}: {sorted(bound.kwargs)} are keyword-only and do not travel"
        )
    return bound.args[1:]


def _arguments_by_member(
    members: Sequence[Member], declaration: Declaration, name: str, values: tuple[Any, ...]
) -> list[bytes]:
    if not isinstance(declaration, Registered) or declaration.mode is not Mode.SPLIT_DP:
        return [codec.encode(values)] * len(members)
    ranks = sorted({member.group_rank for member in members})
    shares = values[0]
    if not isinstance(shares, list) or list(range(len(shares))) != ranks:  # pyright: ignore[reportUnknownArgumentType]
        got = f"{len(shares)} items" if isinstance(shares, list) else type(shares).__name__  # pyright: ignore[reportUnknownArgumentType]
        raise WorkerDeclarationError(
            f"{name}: split_dp takes a list with one item per data-parallel rank, here {ranks}; got {got}"
        )
    return [codec.encode((shares[member.group_rank], *values[1:])) for member in members]
