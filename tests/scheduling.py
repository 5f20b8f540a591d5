"""Which of the processes of `pytest -n` runs which tests."""

from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/integration/engines",)
"""Folders whose files share what is dear to start."""
APART = ("tests/integration/run",)
"""Folders of long tests that share nothing."""
LONG = ("tests/slurm", "tests/integration/run", "tests/integration")
"""What begins first, since a long test that begins last is waited for by all."""


class FileScheduling(LoadScopeScheduling):
    """Gives the tests of a file, which may share fixtures, to one process."""

    def _split_scope(self, nodeid: str) -> str:
        if find_place(nodeid, APART):
            return nodeid
        return find_place(nodeid, TOGETHER) or nodeid.partition("::")[0]


def rank(nodeid: str) -> int:
    """The earlier a test begins, the lower."""
    place = find_place(nodeid, LONG)
    return LONG.index(place) if place else len(LONG)


def find_place(nodeid: str, places: tuple[str, ...]) -> str | None:
    """The first of the folders that has the test."""
    return next((place for place in places if nodeid.startswith(f"{place}/")), None)
