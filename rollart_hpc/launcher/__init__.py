"""The leader on one machine, and what a run leaves on disk."""
