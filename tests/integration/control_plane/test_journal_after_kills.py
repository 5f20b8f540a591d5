"""The journal of a process that is killed while it writes or compacts."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from rollart_hpc.control_plane.journal import BatchFormed, Ended, Finished, Journal, Published, compact, read_journal
from rollart_hpc.types import Outcome, Ticket
from tests.builders import trajectory

WRITER = """
import sys
from pathlib import Path
from rollart_hpc.control_plane.journal import Journal, Published

journal, number = Journal(Path(sys.argv[1])), 0
while True:
    journal.append([Published(number, "x" * 3000) for _ in range(30)], durable=number % 5 == 0)
    print(number, flush=True)
    number += 1
    if number % 50 == 0:
        journal.rotate()
"""


@pytest.mark.parametrize("num_events", [1, 60, 143])
def test_after_a_kill_everything_that_was_appended_is_there_and_no_event_in_part(tmp_path: Path, num_events: int):
    with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [int(next(writer.stdout)) for _ in range(num_events)]
        writer.send_signal(signal.SIGKILL)
        said += [int(line) for line in writer.stdout]
    got = [record.version for record in read_journal(tmp_path) if isinstance(record, Published)]
    assert len(got) % 30 == 0
    assert got == [number for number in range(len(got) // 30) for _ in range(30)]
    assert len(got) // 30 > said[-1]


COMPACTER = """
import sys
from pathlib import Path
from rollart_hpc.control_plane.journal import compact

print("ready", flush=True)
for step in range(10_000):
    compact(Path(sys.argv[1]), before_step=step)
"""


def test_a_kill_in_the_middle_changes_nothing_that_is_told(tmp_path: Path):
    journal = Journal(tmp_path)
    for step in range(150):
        write_batch(journal, step)
    journal.close()
    before = books(tmp_path)
    for delay_s in (0.0, 0.05, 0.1, 0.2):
        with subprocess.Popen([sys.executable, "-c", COMPACTER, tmp_path], stdout=subprocess.PIPE) as compacter:
            assert compacter.stdout is not None
            compacter.stdout.readline()
            threading.Event().wait(delay_s)
            compacter.send_signal(signal.SIGKILL)
        assert books(tmp_path) == before
    Journal(tmp_path).close()
    compact(tmp_path, before_step=150)
    assert not any(len(one.trajectory.token_ids) for one in read_journal(tmp_path) if isinstance(one, Finished))


def books(run: Path) -> list[tuple[str, str]]:
    """Every record without its tokens."""
    return [
        (type(record).__name__, record.trajectory.trajectory_id if isinstance(record, Finished) else repr(record))
        for record in read_journal(run)
    ]


def write_batch(journal: Journal, step: int) -> None:
    """One batch of one trajectory in a segment of its own."""
    ticket = Ticket(trajectory_id=f"t{step}", group_id="g", task="a", seed=7, admitted_version=0)
    journal.append([Finished(trajectory(ticket, token_ids=np.zeros(5000, np.int32)))])
    journal.append([BatchFormed(step, (f"t{step}",))])
    journal.append([Ended(f"t{step}", Outcome.TRAINED)])
    journal.rotate()
