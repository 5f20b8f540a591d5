"""The batch script of a het job: one srun for each component, all at once, and at most one requeue.

It runs on the first node of the first component. Invariants:

- a component's step sees nothing of the other components' variables: all of Slurm's are dropped, and each srun is
  told what it gets;
- USR2 (the notice before the time limit or a preemption) is passed to every step; a component whose function has
  saved leaves a vote, and only this script asks for the requeue, once, when every component has voted or is done;
- what is left of an attempt that was cut off (half-written files, results of half a component) is gone before the
  next one starts; a component that has all its results does not run again;
- the exit code is that of the component that failed first.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.slurm.commands import KEPT_NAMES, LEAKING_NAMES, LEAKING_PREFIXES
from rollart_hpc.slurm.het_submitit import parameters as options


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStep:
    """A component as its batch script needs it."""

    name: str
    folder: Path
    """Of its pickles and logs; ``%j`` in it stands for the job's id."""
    parameters: Mapping[str, object]
    """Merged, see `parameters.merge`."""


def make_batch_script(steps: Sequence[ComponentStep], *, python: str, log: Path) -> str:
    """The whole script; ``python`` is a shell command, ``log`` its own output."""
    whole = steps[0].parameters
    notice_s = options.notice_s(whole)
    lines = ["#!/bin/bash", ""]
    for number, step in enumerate(steps):
        lines += ["#SBATCH hetjob"] if number else []
        lines += options.directives(step.parameters, notice_s)
        if not number:
            output = str(log).replace("%", "%%").replace("%%j", "%j")
            lines += [f"#SBATCH --output={shlex.quote(output)}", "#SBATCH --open-mode=append"]
    lines += ["", *options.words(whole, "setup")]
    lines += [_PROLOGUE.format(notice_s=notice_s, stop=int(bool(whole.get("stop_on_failure"))), **_PATTERNS)]
    lines += [_start(step, number if len(steps) > 1 else None, python) for number, step in enumerate(steps)]
    lines += [_EPILOGUE, *options.words(whole, "teardown"), "exit $code", ""]
    return "\n".join(lines)


def _start(step: ComponentStep, group: int | None, python: str) -> str:
    parameters = step.parameters
    arguments = [] if group is None else [f"--het-group={group}"]
    arguments += [f"--job-name={step.name}", *options.step_options(parameters)]
    logs = [f"--output={_pattern(step.folder / '%j_%t_log.out')}"]
    if not parameters.get("stderr_to_stdout"):
        logs.append(f"--error={_pattern(step.folder / '%j_%t_log.err')}")
    task = f"{python} -u -m submitit.core._submit {shlex.quote(str(step.folder))}"
    begin = f"start {shlex.quote(step.name)} {_path(step.folder)} {options.num_tasks(parameters)}"
    return " \\\n    ".join(
        [
            begin,
            shlex.join(arguments),
            *logs,
            *([shlex.join(options.words(parameters, "srun_args"))] if parameters.get("srun_args") else []),
            f"env SUBMITIT_COMPONENT={shlex.quote(step.name)} {task}",
        ]
    )


def _path(path: Path) -> str:
    """A path for the shell, with the job's id in place of %j."""
    return "'" + str(path).replace("'", "'\"'\"'").replace("%j", "'\"$job\"'") + "'"


def _pattern(path: Path) -> str:
    """A path for srun's --output, where a percent sign begins a pattern: %j would be the component's own number."""
    folder = _path(path.parent).replace("%", "%%")
    return folder + _path(Path("/") / path.name)


_PATTERNS = {
    "kept": " | ".join(sorted(KEPT_NAMES)),
    "leaking": " | ".join([*(f"{prefix}*" for prefix in LEAKING_PREFIXES), *sorted(LEAKING_NAMES)]),
}

_PROLOGUE = """
job=$SLURM_JOB_ID
stop_on_failure={stop}
export SUBMITIT_EXECUTOR=hetslurm SUBMITIT_ATTEMPT=${{SLURM_RESTART_COUNT:-0}} SUBMITIT_NOTICE_S={notice_s}
for name in $(compgen -e); do
    case $name in
        {kept}) ;;
        {leaking}) unset "$name" ;;
    esac
done
((SUBMITIT_ATTEMPT)) && export SLURM_RESTART_COUNT=$SUBMITIT_ATTEMPT

declare -a names folders  # of the components that run, by the process id of their srun
shopt -s nullglob

start() {{  # name, folder, number of tasks, then the words of srun
    local name=$1 folder=$2 num_tasks=$3
    shift 3
    mkdir -p -- "$folder"
    local results=("$folder/${{job}}_"*_result.pkl)
    if ((SUBMITIT_ATTEMPT && ${{#results[@]}} >= num_tasks)); then
        echo "component $name has its results, it does not run again"
        return
    fi
    rm -f -- "$folder/${{job}}_exit" "${{results[@]}}" "$folder/${{job}}_"*.save_tmp
    srun --jobid="$job" --unbuffered --open-mode=append --kill-on-bad-exit=1 "$@" &
    names[$!]=$name
    folders[$!]=$folder
}}

trap '((${{#names[@]}})) && kill -USR2 "${{!names[@]}}"' USR2
"""

_EPILOGUE = """
code=0
votes=0
while ((${#names[@]})); do
    wait -n
    for pid in "${!names[@]}"; do
        kill -0 "$pid" 2>/dev/null && continue
        wait "$pid"
        ended=$?
        name=${names[pid]}
        vote=${folders[pid]}/${job}_${SUBMITIT_ATTEMPT}_requeue
        unset "names[pid]"
        if [[ -e $vote ]]; then
            rm -f -- "$vote"
            ((votes += 1))
            echo "component $name has saved and asks for a requeue"
            continue
        fi
        echo "component $name ended with exit code $ended"
        echo "$ended" >"${folders[pid]}/${job}_exit"
        if ((ended)); then
            ((code)) || code=$ended
            ((stop_on_failure && ${#names[@]})) && kill -TERM "${!names[@]}"
        fi
    done
done
if ((votes && !code)); then
    echo "requeue of job $job"
    scontrol requeue "$job" && sleep 300  # Slurm ends this script
    code=1
fi
"""
