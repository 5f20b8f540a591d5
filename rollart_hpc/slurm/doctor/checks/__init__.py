"""Checks of a run against its cluster: pure functions from a `Case` to findings, one file per subject."""
