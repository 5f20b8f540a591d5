"""Slurm: what the scheduler tells a process about where it runs."""
