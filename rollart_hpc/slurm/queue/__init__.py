"""The jobs of a user in Slurm: their states, their ends, and the notice to save."""
