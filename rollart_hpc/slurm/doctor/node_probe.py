"""Tries one node of every component by srun: what it sees of the files, its limits, whether the interpreter runs.

Invariants: every srun is bounded, by `--immediate` while it waits for a node and by a deadline afterwards; whatever
comes, no job of a probe is left in the queue and no file in the directory of the run.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.config.slurm import ComponentOptions
from rollart_hpc.errors import SlurmError
from rollart_hpc.slurm.commands import clean_environment, require, run_slurm
from rollart_hpc.slurm.doctor.cluster_facts import ClusterFacts
from rollart_hpc.slurm.doctor.machine_facts import existing_parent
from rollart_hpc.slurm.doctor.node_report import MARK, NotProbed, Probe, parse_early_end, parse_report
from rollart_hpc.slurm.script.allocation import Component

_TOKEN_FILE = "token"
_END_GRACE_S = 5.0
_BUSY = ("Requested nodes are busy", "Immediate execution impossible", "temporarily unavailable")
# Paths come as arguments, never inside the text. The limits are those after the set-up lines, as in the batch script.
# Those lines may end the shell, even by exec: the last one that began is then the one to blame. A quote that they leave
# open would swallow lines of ours, hence bash -n.
_SCRIPT = f"""
exec {{rollart_out}}>&1
say() {{ echo "{MARK}$1=$2" >&"$rollart_out"; }}
directory=$1 rollart_python=$2 tokens=$3 model=$4 name=$5 setup=$6
say node "${{SLURMD_NODENAME:-$(hostname)}}"
say token "$(cat "$tokens/{_TOKEN_FILE}" 2>/dev/null)"
( : > "$tokens/$name" ) 2>/dev/null && say writes yes
cd "$directory" 2>/dev/null && say directory yes
[ -f "$model/config.json" ] && say model_bytes "$(wc -c < "$model/config.json")"
say free_kb "$(awk '/^MemAvailable:/ {{print $2}}' /proc/meminfo)"
/bin/bash -O extglob -n -c "$setup" || exit
exec >/dev/null
rollart_line=$LINENO
trap 'say setup_line $((LINENO - rollart_line - 1))' DEBUG
%s
trap - DEBUG
say setup_line done
say nofile_soft "$(ulimit -Sn)"
say nofile_hard "$(ulimit -Hn)"
say memlock "$(ulimit -Sl)"
if [ -n "$rollart_python" ]; then
    if answer=$("$rollart_python" -c 'import socket
import psutil
import rollart_hpc.cli.main
from rollart_hpc.slurm.doctor.node_report import own_version
names = psutil.net_if_addrs().items()
print("interfaces", *(name for name, found in names if any(one.family is socket.AF_INET for one in found)))
print("version", own_version())' 2>&1); then
        say version "${{answer##*version }}"
        say interfaces "$(echo "$answer" | sed -n "s/^interfaces //p")"
    else
        code=$? line=$(echo "$answer" | tail -n 1)
        say python_error "${{line:-exit code $code}}"
    fi
fi
say end yes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What to try, and for how long."""

    python: Path
    directory: Path
    run_directory: Path
    model: Path
    leader: str
    """The component whose interpreter is always the host's."""
    setup: tuple[str, ...] = ()
    immediate_s: int = 15
    """How long a node is waited for."""
    deadline_s: float = 60.0
    """How long a node may take; an interpreter on a cold network file system is slow."""


def probe_components(components: Sequence[Component], facts: ClusterFacts, plan: ProbePlan) -> dict[str, Probe]:
    """What a node of each component answers, all at once.

    Raises:
        NoSlurmError: there is no srun here.
    """
    require("srun")
    parent = existing_parent(plan.run_directory)
    try:
        with _tokens_in(parent) as (tokens, token):
            return asyncio.run(_probe_all(components, facts, plan, tokens, token))
    except OSError as error:
        reason = f"{parent} cannot be written to: {error.strerror}"
        return {component.name: NotProbed(reason=reason) for component in components}


@contextmanager
def _tokens_in(parent: Path) -> Generator[tuple[Path, str]]:
    directory = Path(tempfile.mkdtemp(prefix=".rollart-doctor-", dir=parent))
    try:
        token = secrets.token_hex(8)
        (directory / _TOKEN_FILE).write_text(token)
        yield directory, token
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _probe_all(
    components: Sequence[Component], facts: ClusterFacts, plan: ProbePlan, tokens: Path, token: str
) -> dict[str, Probe]:
    job_name = f"rollart-doctor-{token}"
    command = ["/bin/bash", "-c", _SCRIPT % "\n".join(plan.setup), "setup"]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                component.name: group.create_task(
                    _probe([*srun, *command, *_script_arguments(component, plan, tokens)], token, plan)
                )
                for component in components
                for srun in [srun_arguments(component, facts, plan, job_name)]
            }
    finally:
        _cancel(job_name)
    return {name: task.result() for name, task in tasks.items()}


def _script_arguments(component: Component, plan: ProbePlan, tokens: Path) -> list[str]:
    outside = component.options.container is None or component.name == plan.leader
    python = str(plan.python) if outside else ""
    return [
        str(plan.directory),
        python,
        str(tokens),
        str(plan.model),
        f"seen-by-{component.name}",
        "\n".join(plan.setup),
    ]


def srun_arguments(component: Component, facts: ClusterFacts, plan: ProbePlan, job_name: str) -> list[str]:
    """The srun that asks for the least that proves something: one CPU, and one GPU where the component has some."""
    options = component.options
    wanted: dict[str, str | None] = {
        "job-name": job_name,
        "immediate": str(plan.immediate_s),
        "time": "00:02:00",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": "1",
        "mem": "100M",
        "chdir": "/",
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "reservation": options.reservation,
        "constraint": options.constraint,
        "exclude": options.exclude,
        "nodelist": next(iter(facts.hostlists.get(options.nodelist or "", ())), None),
        **(_gpu_request(options) if component.gpus else {}),
    }
    skipped = {name.lstrip("-") for name in options.skip}
    given = [f"--{name}={value}" for name, value in wanted.items() if value is not None and name not in skipped]
    return ["srun", "--quiet", *given, *(part for option in options.extra for part in shlex.split(option))]


def _gpu_request(options: ComponentOptions) -> Mapping[str, str]:
    kind = f"{options.gpu_type}:" if options.gpu_type else ""
    match options.gpu_form or "gres":
        case "gres":
            return {"gres": f"gpu:{kind}1"}
        case "gpus-per-node":
            return {"gpus-per-node": f"{kind}1"}
        case "none":
            return {}


async def _probe(argv: Sequence[str], token: str, plan: ProbePlan) -> Probe:
    allowed_s = plan.immediate_s + plan.deadline_s
    async with _bounded_process(argv) as process:
        try:
            async with asyncio.timeout(allowed_s):
                output, words = await process.communicate()
        except TimeoutError:
            return NotProbed(reason=f"no answer within {allowed_s:g} s: `{shlex.join(argv[:8])} ...` was ended")
    report = parse_report(output.decode(errors="replace"), token)
    if report is not None:
        return report
    text, code = words.decode(errors="replace"), process.returncode or 0
    if (ended := parse_early_end(output.decode(errors="replace"), text, code, plan.setup)) is not None:
        return ended
    said = " ".join(text.split()) or f"exit code {code}"
    if any(mark in said for mark in _BUSY):
        return NotProbed(reason="no node was free at once", busy=True)
    return NotProbed(reason=f"the try ended early: {said}")


@asynccontextmanager
async def _bounded_process(argv: Sequence[str]) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process of its own group that has ended when the block ends: srun gives its allocation back on TERM."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_END_GRACE_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def _cancel(job_name: str) -> None:
    """Ends what is left of the probes, by the name that only they have."""
    try:
        run_slurm("scancel", f"--name={job_name}", f"--user={os.getuid()}")
    except SlurmError:
        # Nothing more can be done; --immediate and the two minutes of --time end them.
        return
