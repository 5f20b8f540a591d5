"""What Slurm does to a preempted job: whether it comes back by itself."""

from __future__ import annotations

from rollart_hpc.slurm.commands import run_slurm
from rollart_hpc.slurm.doctor.cluster_facts import parse_partitions, parse_settings
from rollart_hpc.slurm.doctor.cluster_query import read_qos
from rollart_hpc.slurm.queue.job_facts import JobFacts


def preempt_modes(facts: JobFacts) -> set[str]:
    """REQUEUE, CANCEL, ...: what may happen to the job, by partition or QOS of its components; empty when nothing can.

    Raises:
        NoSlurmError, SlurmError: Slurm does not say.
    """
    settings = parse_settings(run_slurm("scontrol", "show", "config"))
    if settings.preempt_type == "none":
        return set()
    if settings.preempt_type == "qos":
        known = read_qos() or {}
        named = [known[part.qos].preempt_mode for part in facts.components if part.qos in known]
        modes = {settings.preempt_mode if mode == "CLUSTER" else mode for mode in named or ["CLUSTER"]}
    else:
        partitions = parse_partitions(run_slurm("scontrol", "show", "partition", "--oneliner"))
        modes = {partitions[part.partition].preempt_mode for part in facts.components if part.partition in partitions}
    words = {word for mode in modes for word in mode.split(",")}
    # Whoever may not be preempted keeps all other components from it.
    return set() if "OFF" in words else words
