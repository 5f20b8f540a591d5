"""Between text and token ids, without re-rendering: token ids are the truth.

The chat template is read once, as text around an observation: what stands before the first one, and what stands
between the policy's stop token and the next one. A conversation is then a growing list of ids; nothing that was
sent to the engine is ever tokenized again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rollart_hpc.data_plane.model_files import end_tokens, read_json, read_tokenizer, token_text
from rollart_hpc.errors import ConfigError, EnvironmentFault

_SLOT = "ROLLART-OBSERVATION-PLACE"
_REPLY = "ROLLART-REPLY-PLACE"
_CACHED_OBSERVATIONS = 4096
_CACHED_CHARACTERS = 4096


class ChatFormat:
    """The token ids of observations and the text of responses, for one model directory."""

    def __init__(self, directory: Path) -> None:
        """Reads tokenizer.json and the chat template.

        Raises:
            ConfigError: a file is missing or unusable, or the template does not frame all later turns alike.
        """
        self._tokenizer = read_tokenizer(directory)
        settings = read_json(directory / "tokenizer_config.json")
        self.stop_token_ids = end_tokens(directory, self._tokenizer)
        stop_texts = [self._tokenizer.decode([token], skip_special_tokens=False) for token in self.stop_token_ids]
        render = _renderer(_read_template(directory, settings), settings, directory)
        self._first, self._next = _observation_frames(render, stop_texts, directory)
        self._encode_first = lru_cache(_CACHED_OBSERVATIONS)(self._ids_of_first)
        self._encode_next = lru_cache(_CACHED_OBSERVATIONS)(self._ids_of_next)

    def first_observation(self, text: str) -> bytes:
        """Ids (int32 bytes) of the prompt that the first observation makes.

        Raises:
            EnvironmentFault: bad_text: the tokenizer does not take the observation.
        """
        return self._encode_first(text) if len(text) <= _CACHED_CHARACTERS else self._ids_of_first(text)

    def next_observation(self, text: str) -> bytes:
        """Ids (int32 bytes) that follow the policy's stop token, up to where it writes again.

        Raises:
            EnvironmentFault: bad_text: the tokenizer does not take the observation.
        """
        return self._encode_next(text) if len(text) <= _CACHED_CHARACTERS else self._ids_of_next(text)

    def response_text(self, token_ids: Sequence[int]) -> str:
        """The policy's text, without its stop token."""
        if token_ids and token_ids[-1] in self.stop_token_ids:
            token_ids = token_ids[:-1]
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _ids_of_first(self, text: str) -> bytes:
        return self._encode(self._first, text)

    def _ids_of_next(self, text: str) -> bytes:
        return self._encode(self._next, text)

    def _encode(self, frame: tuple[str, str], text: str) -> bytes:
        try:
            encoding = self._tokenizer.encode(frame[0] + text + frame[1], add_special_tokens=False)
        except Exception as error:
            raise EnvironmentFault("bad_text", f"the tokenizer does not take {text[:80]!r}: {error}") from error
        return np.asarray(encoding.ids, np.int32).tobytes()


def _read_template(directory: Path, settings: dict[str, Any]) -> str:
    file = directory / "chat_template.jinja"
    try:
        template = file.read_text() if file.is_file() else settings.get("chat_template")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text: {error}") from error
    if not isinstance(template, str):
        raise ConfigError(
            f"{directory}: no chat template; expected chat_template.jinja or the key in tokenizer_config.json"
        )
    return template


def _renderer(template: str, settings: dict[str, Any], directory: Path) -> Callable[[int], str]:
    """Renders that many observations with a reply between each two, up to where the policy writes again."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def raise_exception(message: str) -> str:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = raise_exception  # pyright: ignore[reportArgumentType]
    tokens = {name: token_text(settings, name) for name in ("bos_token", "eos_token")}
    user, reply = {"role": "user", "content": _SLOT}, {"role": "assistant", "content": _REPLY}

    def render(num_observations: int) -> str:
        messages = [user, *[reply, user] * (num_observations - 1)]
        try:
            compiled = environment.from_string(template)
            return compiled.render(messages=messages, add_generation_prompt=True, tools=None, **tokens)
        except Exception as error:
            raise ConfigError(f"{directory}: the chat template fails on user and assistant turns: {error}") from error

    return render


def _observation_frames(
    render: Callable[[int], str], stop_texts: list[str], directory: Path
) -> tuple[tuple[str, str], tuple[str, str]]:
    """(before, after) of the first observation, and of every later one counted from the stop token."""
    first, whole = render(1), render(2)
    after_reply = whole.rsplit(_REPLY, 1)[-1]
    stop = next((text for text in stop_texts if text and after_reply.startswith(text)), None)
    if first.count(_SLOT) != 1 or after_reply.count(_SLOT) != 1 or stop is None:
        raise ConfigError(
            f"{directory}: the chat template does not put each user turn once, or does not end the assistant's turn "
            f"with one of the end tokens {stop_texts}; got {whole!r}"
        )
    if (third := render(3).rsplit(_REPLY, 1)[-1]) != after_reply:
        raise ConfigError(
            f"{directory}: the chat template puts another text around the third user turn than around the second: "
            f"{third!r}, not {after_reply!r}; expected the same around all later turns"
        )
    before_first, after_first = first.split(_SLOT)
    before_next, after_next = after_reply.removeprefix(stop).split(_SLOT)
    return (before_first, after_first), (before_next, after_next)
