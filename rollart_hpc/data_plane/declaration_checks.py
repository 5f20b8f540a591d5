"""What only a whole Worker class can tell of its declarations; it is checked when the class is created.

A method that overrides a declared one keeps its declaration, so that whoever calls the base's method reaches it; one
that declares itself otherwise is refused.
"""

from __future__ import annotations

import inspect
from typing import Any

from rollart_hpc.data_plane.declarations import (
    TAG_PARAMETER,
    Declaration,
    HardwareMapped,
    Mode,
    Registered,
    Serverless,
    attach,
    declared,
    declared_methods,
    note_override,
)
from rollart_hpc.errors import WorkerDeclarationError
from rollart_hpc.types import Role

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LIFE = frozenset({"setup", "run", "close", "hand_over"})
"""Of a worker, awaited by its process."""
_OF_CLUSTER = frozenset({"call", "call_one", "members", "worker_class"})


def check_declarations(worker_class: type, base: type) -> None:
    """Checks a new Worker class; ``base`` is Worker itself, whose names are taken.

    Raises:
        WorkerDeclarationError: a mapped method takes no tag, a split method takes no argument, a method has parameters
            that no call can give, a declared name or a serverless attribute hides another thing, a method overrides
            one that is declared otherwise or called otherwise, or the class has no role.
    """
    _keep_declarations(worker_class)
    taken = frozenset([*vars(base), *vars(base).get("__annotations__", ())])
    attributes: dict[str, str] = {}
    for name, declaration in declared_methods(worker_class).items():
        where = f"{worker_class.__name__}.{name}"
        _check_name(where, name, taken)
        _check_parameters(where, declaration, inspect.signature(getattr(worker_class, name)))
        if isinstance(declaration, Serverless):
            _check_attribute(where, declaration, worker_class, taken)
            url = attributes.setdefault(declaration.attribute, declaration.serverless_url)
            if url != declaration.serverless_url:
                raise WorkerDeclarationError(
                    f"{where}: self.{declaration.attribute} is {url} already; give each URL an attribute of its own"
                )
    _check_kinds(worker_class)
    _check_role(worker_class)


def _check_kinds(worker_class: type) -> None:
    """Checks what is defined in the class itself: methods of its life, and that what is declared can be called."""
    for name, own in vars(worker_class).items():
        where = f"{worker_class.__name__}.{name}"
        if name in _LIFE and not inspect.iscoroutinefunction(own):
            raise WorkerDeclarationError(f"{where}: is awaited; write `async def {name}(self)`")
        inner = own.fget if isinstance(own, property) else getattr(own, "__func__", None)
        if inner is not None and declared(inner) is not None:
            raise WorkerDeclarationError(
                f"{where}: a declared method takes self; leave @{type(own).__name__} out, or the declaration"
            )
        if declared(own) is not None and (inspect.isgeneratorfunction(own) or inspect.isasyncgenfunction(own)):
            raise WorkerDeclarationError(f"{where}: yields, and a call has one answer; return a list")
    try:
        inspect.signature(worker_class).bind(None)
    except TypeError as error:
        raise WorkerDeclarationError(
            f"{worker_class.__name__}.__init__: {error}; a worker is made with its context: "
            "`def __init__(self, context)`, which calls super().__init__(context)"
        ) from error


def _keep_declarations(worker_class: type) -> None:
    seen: set[str] = set()
    for base in worker_class.__mro__[1:]:
        for name, inherited in vars(base).items():
            declaration = declared(inherited)
            if declaration is None or name in seen:
                continue
            seen.add(name)
            own = inspect.getattr_static(worker_class, name)
            if own is not inherited:
                _keep(f"{worker_class.__name__}.{name}", own, f"{base.__name__}.{name}", inherited, declaration)


def _keep(where: str, own: Any, of_base: str, inherited: Any, declaration: Declaration) -> None:
    if not callable(own):
        raise WorkerDeclarationError(f"{where} = {own!r:.80}: {of_base} is called by others; it can only be overridden")
    mine = declared(own)
    if mine is None:
        attach(own, declaration)
    elif type(mine) is not type(declaration) or (isinstance(mine, Registered) and mine != declaration):
        raise WorkerDeclarationError(
            f"{where}: is declared by {_in_words(mine)}, {of_base} by {_in_words(declaration)}, which its callers go "
            "by; leave the declaration out, or call the method otherwise"
        )
    note_override(own, inherited)
    given = list(inspect.signature(inherited).parameters)
    try:
        inspect.signature(own).bind(*given)
    except TypeError as error:
        raise WorkerDeclarationError(f"{where}: {error}; it is called as {of_base}, with {given[1:]}") from error


def _in_words(declaration: Declaration) -> str:
    if isinstance(declaration, Registered):
        return f'register(mode="{declaration.mode}")'
    return "hw_mapping" if isinstance(declaration, HardwareMapped) else "register_serverless"


def _check_name(where: str, name: str, taken: frozenset[str]) -> None:
    if name in _OF_CLUSTER or name.startswith("_"):
        raise WorkerDeclarationError(f"{where}: {name!r} is a name of Cluster itself; call the method otherwise")
    if name in taken:
        raise WorkerDeclarationError(
            f"{where}: {name!r} is a part of every worker's life and is not called from outside; override it without "
            "a declaration, or call the method otherwise"
        )


def _check_parameters(where: str, declaration: Declaration, signature: inspect.Signature) -> None:
    parameters = signature.parameters
    if isinstance(declaration, HardwareMapped) and TAG_PARAMETER not in parameters:
        raise WorkerDeclarationError(f"{where}: hw_mapping needs a parameter named {TAG_PARAMETER!r}")
    if isinstance(declaration, Registered) and declaration.mode is Mode.SPLIT_DP and len(parameters) < 2:
        raise WorkerDeclarationError(f"{where}: split_dp needs a first argument to split")
    for parameter in parameters.values():
        if parameter.kind not in _POSITIONAL:
            raise WorkerDeclarationError(f"{where}: {parameter.name!r} cannot be given; arguments travel by position")


def _check_attribute(where: str, declaration: Serverless, worker_class: type, taken: frozenset[str]) -> None:
    attribute = declaration.attribute
    if attribute in taken or hasattr(worker_class, attribute):
        raise WorkerDeclarationError(
            f"{where}: register_serverless(attribute={attribute!r}) would hide {worker_class.__name__}.{attribute}; "
            "choose another name"
        )


def _check_role(worker_class: type) -> None:
    role = getattr(worker_class, "role", None)
    if not isinstance(role, Role):
        raise WorkerDeclarationError(
            f"{worker_class.__name__} has no role; derive it from ActorTrainCls, ActorGenCls, EnvironmentCls or "
            "RewardCls of rollart_hpc.distributed"
        )
    other = next((base for base in worker_class.__mro__ if getattr(base, "role", role) != role), None)
    if other is not None:
        raise WorkerDeclarationError(f"{worker_class.__name__}.role = {role!r}: {other.__name__} has {other.role!r}")  # pyright: ignore[reportAttributeAccessIssue]
