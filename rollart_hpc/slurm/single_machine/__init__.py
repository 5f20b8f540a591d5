"""A real Slurm on one machine: for tests, demonstrations and trials of preemption, under one directory."""

from rollart_hpc.slurm.single_machine.cluster import Cluster, read_cluster
from rollart_hpc.slurm.single_machine.options import DEFAULT_DIRECTORY, ClusterOptions
from rollart_hpc.slurm.single_machine.start import start_cluster

__all__ = ["DEFAULT_DIRECTORY", "Cluster", "ClusterOptions", "read_cluster", "start_cluster"]
