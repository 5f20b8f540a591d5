"""The three decorators of a Worker class (paper section 5.2, Listing 1).

Each attaches one frozen record to the method and changes nothing else: callers keep the method's type. What is wrong
is said when the class is created (`rollart_hpc.data_plane.declaration_checks`), so a misuse never waits for a call.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import FunctionType
from typing import Any, TypeVar, cast

from rollart_hpc.errors import WorkerDeclarationError

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__rollart_declaration__"
_OVERRIDDEN = "__rollart_overridden__"
DEFAULT_TAG = "default"
TAG_PARAMETER = "tag_name"


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
        raise WorkerDeclarationError(
            f"hw_mapping(hw_affinity={dict(hw_affinity)!r}): expected tags and hardware classes, as text"
        )
    return _attach(HardwareMapped(dict(hw_affinity)))


def register_serverless(attribute: str, serverless_url: str) -> Callable[[F], F]:
    """Declares a method that reaches a serverless function through ``self.<attribute>``.

    Raises:
        WorkerDeclarationError: the attribute is no public identifier or the URL has no scheme.
    """
    name = str(attribute)
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise WorkerDeclarationError(
            f"register_serverless(attribute={attribute!r}): expected an attribute's name, without a leading underscore"
        )
    if "://" not in str(serverless_url):
        raise WorkerDeclarationError(
            f"register_serverless(serverless_url={serverless_url!r}): expected a URL such as https://host/path"
        )
    return _attach(Serverless(attribute, serverless_url))


def _attach(declaration: Declaration) -> Callable[[F], F]:
    def decorate(method: F) -> F:
        if not isinstance(cast(object, method), FunctionType):
            raise WorkerDeclarationError(
                f"{getattr(method, '__qualname__', method)!s}: a declaration stands directly above the `def` of a "
                f"method, got {type(method).__name__}"
            )
        if declared(method) is not None:
            raise WorkerDeclarationError(f"{method.__qualname__}: has two declarations; a method takes one")
        attach(method, declaration)
        return method

    return decorate


def attach(method: object, declaration: Declaration) -> None:
    """Makes a declaration that of a method."""
    setattr(method, _ATTRIBUTE, declaration)


def note_override(method: object, base: object) -> None:
    """Remembers which declared method a declared one overrides."""
    setattr(method, _OVERRIDDEN, base)


def overridden(method: object) -> object | None:
    """The declared method that a method overrides, if it does."""
    return getattr(method, _OVERRIDDEN, None)


def declared(method: object) -> Declaration | None:
    """The declaration of a method, if it has one."""
    return getattr(method, _ATTRIBUTE, None)


def declared_methods(worker_class: type) -> dict[str, Declaration]:
    """Every declared method of a class, inherited ones included, by name."""
    members = inspect.getmembers_static(worker_class)
    return {name: declaration for name, member in members if (declaration := declared(member)) is not None}
