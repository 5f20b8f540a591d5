"""Emulated hardware: engines, trainers and environments that take the time of a stated model (paper section 7)."""
