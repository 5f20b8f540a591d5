"""The three decorators of a Worker class (paper section 5.2, Listing 1).

Each attaches one frozen record to the method and changes nothing else: callers keep the method's type.
`check_declarations` runs when the class is created, so a misuse never waits for a call.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from rollart_hpc.errors import WorkerDeclarationError

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__rollart_declaration__"
DEFAULT_TAG = "default"
TAG_PARAMETER = "tag_name"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Mode(StrEnum):
    """How a Cluster dispatches a registered method."""

    EXECUTE_ALL = "execute_all"
    """The same arguments to every worker; results in rank order."""
    RANK_ZERO = "rank_zero"
    """To the first worker alone; a list of one result."""
    SPLIT_DP = "split_dp"
    """The first argument is a list with one item per data-parallel rank; each worker gets its own."""


@dataclass(frozen=True, slots=True)
class Registered:
    """`register`: a method of the single-controller model."""

    mode: Mode


@dataclass(frozen=True, slots=True)
class HardwareMapped:
    """`hw_mapping`: routed by the call's tag to a hardware class."""

    hw_affinity: Mapping[str, str]

    def hardware_for(self, tag: str) -> str:
        """The declared class of a tag; the default's where the tag has none."""
        return self.hw_affinity.get(tag, self.hw_affinity[DEFAULT_TAG])


@dataclass(frozen=True, slots=True)
class Serverless:
    """`register_serverless`: the worker's ``attribute`` becomes a callable of the URL."""

    attribute: str
    serverless_url: str


Declaration = Registered | HardwareMapped | Serverless


def register(mode: str = Mode.EXECUTE_ALL) -> Callable[[F], F]:
    """Declares a method that a Cluster runs on its workers in the given mode.

    Raises:
        WorkerDeclarationError: the mode does not exist.
    """
    if mode not in list(Mode):
        raise WorkerDeclarationError(f"register(mode={mode!r}): expected one of {[str(known) for known in Mode]}")
    return _attach(Registered(Mode(mode)))


def hw_mapping(hw_affinity: Mapping[str, str]) -> Callable[[F], F]:
    """Declares the hardware class that a method's calls prefer, by their ``tag_name``.

    Raises:
        WorkerDeclarationError: there is no ``default``, or a key or value is not a name.
    """
    if not isinstance(hw_affinity, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WorkerDeclarationError(f"hw_mapping(hw_affinity={hw_affinity!r}): expected a mapping of tags to hardware")
    if DEFAULT_TAG not in hw_affinity:
        raise WorkerDeclarationError(
            f"hw_mapping(hw_affinity={dict(hw_affinity)!r}): the key {DEFAULT_TAG!r} is missing; "
            "it names the hardware of every other tag"
        )
    if not all(isinstance(name, str) and name for pair in hw_affinity.items() for name in pair):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WorkerDeclarationError(f"hw_mapping(hw_affinity={dict(hw_affinity)!r}): expected names for names")
    return _attach(HardwareMapped(dict(hw_affinity)))


def register_serverless(attribute: str, serverless_url: str) -> Callable[[F], F]:
    """Declares a method that reaches a serverless function through ``self.<attribute>``.

    Raises:
        WorkerDeclarationError: the attribute is no identifier or the URL has no scheme.
    """
    if not attribute.isidentifier() or keyword.iskeyword(attribute):
        raise WorkerDeclarationError(f"register_serverless(attribute={attribute!r}): expected an attribute's name")
    if "://" not in str(serverless_url):
        raise WorkerDeclarationError(
            f"register_serverless(serverless_url={serverless_url!r}): expected a URL such as https://host/path"
        )
    return _attach(Serverless(attribute, serverless_url))


def _attach(declaration: Declaration) -> Callable[[F], F]:
    def decorate(method: F) -> F:
        if declared(method) is not None:
            raise WorkerDeclarationError(f"{method.__qualname__}: has two declarations; a method takes one")
        setattr(method, _ATTRIBUTE, declaration)
        return method

    return decorate


def declared(method: object) -> Declaration | None:
    """The declaration of a method, if it has one."""
    return getattr(method, _ATTRIBUTE, None)


def declared_methods(worker_class: type) -> dict[str, Declaration]:
    """Every declared method of a class, inherited ones included, by name."""
    members = inspect.getmembers_static(worker_class)
    return {name: declaration for name, member in members if (declaration := declared(member)) is not None}


def check_declarations(worker_class: type) -> None:
    """Checks what only the whole class can tell.

    Raises:
        WorkerDeclarationError: a mapped method takes no tag, a split method takes no argument, a registered one
            has parameters that no call can give, or a declared name would hide one of Cluster.
    """
    for name, declaration in declared_methods(worker_class).items():
        where = f"{worker_class.__name__}.{name}"
        parameters = inspect.signature(getattr(worker_class, name)).parameters
        if isinstance(declaration, HardwareMapped) and TAG_PARAMETER not in parameters:
            raise WorkerDeclarationError(f"{where}: hw_mapping needs a parameter named {TAG_PARAMETER!r}")
        if isinstance(declaration, Registered) and declaration.mode is Mode.SPLIT_DP and len(parameters) < 2:
            raise WorkerDeclarationError(f"{where}: split_dp needs a first argument to split")
        if isinstance(declaration, Registered):
            for parameter in parameters.values():
                if parameter.kind not in _POSITIONAL:
                    raise WorkerDeclarationError(
                        f"{where}: {parameter.name!r} cannot be given; arguments travel by position"
                    )
        if name in RESERVED_NAMES or name.startswith("_"):
            raise WorkerDeclarationError(f"{where}: {name!r} is a name of Cluster itself; call the method otherwise")


RESERVED_NAMES = frozenset({"call", "call_one", "members", "worker_class"})
