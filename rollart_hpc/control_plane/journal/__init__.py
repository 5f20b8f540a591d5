"""The run's journal: an append-only record of what happened to every group, trajectory and batch."""

from rollart_hpc.control_plane.journal.compaction import compact
from rollart_hpc.control_plane.journal.frames import JOURNAL_DIRECTORY
from rollart_hpc.control_plane.journal.reader import Damage, JournalReader, has_journal, read_journal
from rollart_hpc.control_plane.journal.records import (
    AttemptStarted,
    BatchFormed,
    Dispatched,
    Ended,
    Finished,
    GivenUp,
    GroupOpened,
    HandedIn,
    Published,
    Record,
    Sent,
)
from rollart_hpc.control_plane.journal.segments import Journal

__all__ = [
    "JOURNAL_DIRECTORY",
    "AttemptStarted",
    "BatchFormed",
    "Damage",
    "Dispatched",
    "Ended",
    "Finished",
    "GivenUp",
    "GroupOpened",
    "HandedIn",
    "Journal",
    "JournalReader",
    "Published",
    "Record",
    "Sent",
    "compact",
    "has_journal",
    "read_journal",
]
