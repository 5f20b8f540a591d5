"""GEM's language games by name and difficulty, with the board in the observation.

Which games need no data beyond the package is written down here, so that a wrong name, or a game whose data is missing,
is refused with what works instead. GEM itself is imported only for a game that can be played.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from rollart_hpc.envs.adapters.gem_env import GemEnv

_COMMON = ("easy", "hard", "random")
GAMES = {
    "FifteenPuzzle": _COMMON,
    "Game2048": ("easy", "hard", "extreme-hard", "random"),
    "GuessTheNumber": _COMMON,
    "Mastermind": _COMMON,
    "Minesweeper": _COMMON,
    "Sokoban": _COMMON,
    "Sudoku": _COMMON,
    "TowerofHanoi": _COMMON,
}
"""Difficulties of the games that need nothing but gem-llm."""
WORD_GAMES = {"Hangman": _COMMON, "WordSearch": _COMMON, "Wordle": _COMMON}
"""Those that need nltk's corpus `words`, a folder below NLTK_DATA."""
CROSSWORDS = {"Crosswords": _COMMON}
"""Needs the package pandas."""
_ALL = GAMES | WORD_GAMES | CROSSWORDS
_REPAIRS: dict[tuple[str, str], dict[str, Any]] = {
    # GEM's constructor computes with the size before it has drawn one.
    ("FifteenPuzzle", "random"): {"num_rows": 2},
}


class GemGame(GemEnv):
    """One game. Actions stand in ``\\boxed{}``; a text without one in the game's format ends the episode with -0.1.

    Args:
        game: one of `GAMES`; of `WORD_GAMES` and `CROSSWORDS` where their data is installed.
        difficulty: ``easy``, ``hard``, ``random`` (drawn by the seed); of Game2048 also ``extreme-hard``.
        game_args: arguments of GEM's constructor that replace those of the difficulty, as in ``max_turns``.
        instructions: text before the first observation.
    """

    def __init__(
        self,
        *,
        game: str,
        difficulty: str = "easy",
        game_args: Mapping[str, Any] | None = None,
        instructions: str = "",
    ) -> None:
        if game not in _ALL or difficulty not in _ALL[game]:
            raise ValueError(f"got game {game!r} with difficulty {difficulty!r}; expected one of: {_listed(_ALL)}")
        if missing := _missing_data(game):
            raise ValueError(f"{game} needs {missing}; without it these can be played: {_listed(GAMES)}")
        args = _REPAIRS.get((game, difficulty), {}) | dict(game_args or {})
        super().__init__(env_id=f"game:{game}-v0-{difficulty}", env_args=args, instructions=instructions)


def _missing_data(game: str) -> str:
    """What the game needs and this machine lacks; empty if nothing."""
    if game in CROSSWORDS and importlib.util.find_spec("pandas") is None:
        return "the package pandas (pip install pandas)"
    if game in WORD_GAMES:
        import nltk.data  # noqa: PLC0415

        try:
            nltk.data.find("corpora/words")
        except LookupError:
            return "nltk's corpus words (python -m nltk.downloader -d DIR words, then NLTK_DATA=DIR for the run)"
    return ""


def _listed(games: Mapping[str, tuple[str, ...]]) -> str:
    return ", ".join(f"{game} ({'|'.join(difficulties)})" for game, difficulties in games.items())
