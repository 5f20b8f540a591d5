"""From a config to a running attempt, here or as a Slurm job: submission, leader, run directory, status."""
