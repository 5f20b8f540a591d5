"""FrozenLake: walk from the start to the goal over a grid with holes (gymnasium's dynamics, text in and out).

An observation is the grid: P the player, F frozen, H hole, G goal. An action is any text that holds exactly
one of the words left, down, right, up; any other text costs a turn and moves nothing. The number of turns is
bounded by the run's config, not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gymnasium.envs.toy_text.frozen_lake import MAPS, FrozenLakeEnv, generate_random_map

from rollart_hpc.interfaces import EnvironmentProperties

ACTIONS = {"left": 0, "down": 1, "right": 2, "up": 3}
_ACTION = re.compile("|".join(ACTIONS))

Cell = tuple[int, int]


class FrozenLake:
    """One lake; a pure function of its arguments, the seed and the actions.

    Args:
        map_name: one of gymnasium's maps, ``4x4`` or ``8x8``.
        desc: rows of S, F, H, G; instead of ``map_name``.
        is_slippery: the step goes astray two times out of three; the seed decides when.
        random: a new map that can be solved for every seed.
        size: edge of a random map.
        instructions: text before the first grid, for models that do not know the game.
    """

    properties: ClassVar[EnvironmentProperties] = EnvironmentProperties(light=True, replayable=True)

    def __init__(
        self,
        *,
        map_name: str = "4x4",
        desc: Sequence[str] | None = None,
        is_slippery: bool = False,
        random: bool = False,
        size: int = 4,
        instructions: str = "",
    ) -> None:
        if desc is None and not random and map_name not in MAPS:
            raise ValueError(f"map_name is {map_name!r}; expected one of {sorted(MAPS)}, or give desc")
        if size < 2:
            raise ValueError(f"size is {size}; a random map needs 2 or more")
        self._is_slippery = is_slippery
        self._random_size = size if random else None
        self._instructions = instructions
        if not random:
            self._freeze(list(desc) if desc is not None else MAPS[map_name])

    def reset(self, *, seed: int, task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Puts the player at the start; draws the map first when maps are random."""
        if self._random_size is not None:
            self._freeze(generate_random_map(size=self._random_size, seed=seed))
        self._state = int(self._lake.reset(seed=seed)[0])
        self._start_distance = self._best_distance = self._distances[self._cell()]
        self._turns = self._invalid_turns = 0
        self._success = False
        return self._instructions + self._grid(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes the one step that the text names, or none. The reward is gymnasium's: 1 at the goal, else 0."""
        self._turns += 1
        words = _ACTION.findall(action)
        reward, terminated = 0.0, False
        if len(words) == 1:
            state, reward, terminated, _, _ = self._lake.step(ACTIONS[words[0]])
            self._state = int(state)
            self._success |= reward > 0
            self._best_distance = min(self._best_distance, self._distances.get(self._cell(), self._best_distance))
        else:
            self._invalid_turns += 1
        return self._grid(), float(reward), bool(terminated), False, self._info()

    def close(self) -> None:
        """Nothing to free."""

    def shortening_actions(self) -> list[str]:
        """The actions that bring the player nearer to the goal, were the ice not slippery."""
        row, column = self._cell()
        here = self._distances.get((row, column), 0)
        ahead = {
            "left": (row, column - 1),
            "down": (row + 1, column),
            "right": (row, column + 1),
            "up": (row - 1, column),
        }
        return [word for word, cell in ahead.items() if self._distances.get(cell, here) < here]

    def _freeze(self, rows: list[str]) -> None:
        cells = "".join(rows)
        if (
            set(cells) - set("SFHG")
            or cells.count("S") != 1
            or "G" not in cells
            or len({len(row) for row in rows}) != 1
        ):
            raise ValueError(f"map {rows}; expected rows of one length made of F and H, exactly one S and a G")
        self._rows = rows
        self._distances = _distances_to_goal(rows)
        start = next((row, line.index("S")) for row, line in enumerate(rows) if "S" in line)
        if start not in self._distances:
            raise ValueError(f"map {rows}; no way leads from S to G")
        self._lake = FrozenLakeEnv(desc=rows, is_slippery=self._is_slippery)

    def _cell(self) -> Cell:
        return divmod(self._state, len(self._rows[0]))

    def _grid(self) -> str:
        row, column = self._cell()
        lines = [line.replace("S", "F") for line in self._rows]
        lines[row] = f"{lines[row][:column]}P{lines[row][column + 1 :]}"
        return "\n".join(lines)

    def _info(self) -> dict[str, Any]:
        return {
            "success": self._success,
            "progress": (self._start_distance - self._best_distance) / self._start_distance,
            "invalid_turns": self._invalid_turns,
            "turns": self._turns,
        }


def _distances_to_goal(rows: list[str]) -> dict[Cell, int]:
    """Steps from every cell that is no hole to the nearest goal, by breadth-first search."""
    frontier = [(row, column) for row, line in enumerate(rows) for column, cell in enumerate(line) if cell == "G"]
    distances = dict.fromkeys(frontier, 0)
    for row, column in frontier:
        for cell in ((row, column - 1), (row + 1, column), (row, column + 1), (row - 1, column)):
            inside = 0 <= cell[0] < len(rows) and 0 <= cell[1] < len(rows[0])
            if inside and cell not in distances and rows[cell[0]][cell[1]] != "H":
                distances[cell] = distances[row, column] + 1
                frontier.append(cell)
    return distances
