"""Heterogeneous Slurm jobs for submitit: several callables or commands, one job, each on its own kind of nodes."""

from rollart_hpc.slurm.het_submitit.component import Component
from rollart_hpc.slurm.het_submitit.executor import HetSlurmExecutor, SubmissionRefusedError
from rollart_hpc.slurm.het_submitit.job import ComponentJob, HetJob
from rollart_hpc.slurm.het_submitit.job_environment import HetSlurmJobEnvironment
from rollart_hpc.slurm.het_submitit.paths import HetJobPaths, ScriptJobPaths
from rollart_hpc.slurm.het_submitit.script_job import ScriptJob

__all__ = [
    "Component",
    "ComponentJob",
    "HetJob",
    "HetJobPaths",
    "HetSlurmExecutor",
    "HetSlurmJobEnvironment",
    "ScriptJob",
    "ScriptJobPaths",
    "SubmissionRefusedError",
]
