"""What a serverless deployment of a reward gets of an episode, by the task's ``reward_payload``.

- ``text``: the `Episode` as JSON.
- ``tokens``: a `TokenEpisode` as JSON: ids and mask in place of the words. For deployments that run a model.
- ``reference``: a `Reference` as JSON: the name of a file with the `Episode`, below a directory that both sides see.
  For episodes over the size limit. The file is there until the call has ended.

The local pool always gets the `Episode`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from rollart_hpc.rewards.signature import sha256
from rollart_hpc.types import Episode, Int32Array

Shape = Literal["text", "tokens", "reference"]
DIRECTORY = "reward_payloads"
"""Of the run's directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What is known of an episode beside its words."""

    trajectory_id: str
    token_ids: Int32Array
    """[T] observations and responses in order."""
    loss_mask: npt.NDArray[np.uint8]
    """[T] 1 on tokens that the policy sampled."""


class TokenEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode in tokens; the fields that it shares with `Episode` are the same."""

    task: str
    seed: int
    token_ids: list[int]
    """Observations and responses in order."""
    loss_mask: list[int]
    """1 on tokens that the policy sampled."""
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Where an episode lies."""

    reference: str
    """Path below the directory that both sides see."""
    sha256: str
    size_bytes: int


class _Kind(msgspec.Struct):
    """What tells the shapes apart, without the rest."""

    reference: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class PayloadError(ValueError):
    """A body cannot be made or understood, or what it refers to is not there."""


class PayloadWriter:
    """Makes bodies; files of references lie in a folder of this writer's own.

    Args:
        root: the directory that references are relative to, the run's own.
        name: of this writer's folder in it.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._folder = root, Path(DIRECTORY) / name

    @asynccontextmanager
    async def body(self, shape: Shape, key: str, episode: Episode, played: Played | None) -> AsyncGenerator[bytes]:
        """The body of the call ``key``; what it refers to is there until the block ends.

        Raises:
            PayloadError: it cannot be made.
        """
        if shape == "tokens":
            yield _in_tokens(episode, played)
        elif shape == "text":
            yield _json(episode)
        else:
            relative, content = self._folder / f"{key}.json", _json(episode)
            try:
                await asyncio.to_thread(_write, self._root / relative, content)
                digest = sha256(content)
                yield msgspec.json.encode(Reference(reference=str(relative), sha256=digest, size_bytes=len(content)))
            except OSError as error:
                raise PayloadError(f"the episode cannot be written for its reference: {error}") from error
            finally:
                with contextlib.suppress(OSError):
                    (self._root / relative).unlink()

    def clear(self) -> None:
        """Removes what is there, of an earlier process of this name too."""
        folder = self._root / self._folder
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            folder.parent.rmdir()


def read_body(body: bytes, root: Path | None) -> Episode | TokenEpisode:
    """The episode of a body; a reference's file must lie below ``root``.

    Raises:
        PayloadError: it is none, or its file is not there, not what it should be, or not to be read.
    """
    try:
        kind = msgspec.json.decode(body, type=_Kind)
        if kind.reference is not msgspec.UNSET:
            body = _referenced(msgspec.json.decode(body, type=Reference), root)
        elif kind.token_ids is not msgspec.UNSET:
            return msgspec.json.decode(body, type=TokenEpisode)
        return msgspec.json.decode(body, type=Episode)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PayloadError(f"{error}; expected an Episode, a TokenEpisode or a Reference as JSON") from error


def _in_tokens(episode: Episode, played: Played | None) -> bytes:
    if played is None:
        raise PayloadError("the tokens of this episode are not known")
    return _json(
        TokenEpisode(
            task=episode.task,
            seed=episode.seed,
            token_ids=played.token_ids.tolist(),
            loss_mask=played.loss_mask.tolist(),
            terminated=episode.terminated,
            truncated=episode.truncated,
            info=episode.info,
        )
    )


def _json(episode: Episode | TokenEpisode) -> bytes:
    try:
        return msgspec.json.encode(episode)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadError(f"the episode cannot be written as JSON, for its texts or its info: {error}") from error


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def _referenced(reference: Reference, root: Path | None) -> bytes:
    if root is None:
        raise PayloadError("this server reads no references; start it with --references DIRECTORY")
    try:
        path = (root / reference.reference).resolve()
    except (ValueError, RuntimeError) as error:
        raise PayloadError(f"reference {reference.reference!r} is no path: {error}") from error
    if not path.is_relative_to(root.resolve()):
        raise PayloadError(f"reference {reference.reference!r} leads out of the directory of references")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PayloadError(f"reference {reference.reference!r} cannot be read: {error.strerror}") from error
    if len(content) != reference.size_bytes or sha256(content) != reference.sha256:
        raise PayloadError(f"reference {reference.reference!r} is not what it should be: {len(content)} bytes")
    return content
