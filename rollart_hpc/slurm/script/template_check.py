"""Whether what a user's template made is still a batch script of the run, as sbatch and the leader read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LEADER = "-m rollart_hpc.cli.main lead"
_PREFIX = "#SBATCH"


def missing(script: str, options: Sequence[Sequence[str]], config: str) -> Iterator[str]:
    """What the script lacks, in words.

    Args:
        script: the rendered text.
        options: by component, what must stand behind ``#SBATCH``.
        config: the run's config as the leader must get it.
    """
    if not script.startswith("#!"):
        yield "a first line that begins with #!, such as #!/bin/bash"
    blocks = _blocks(script)
    if len(blocks) != len(options):
        yield (
            f"`{_PREFIX} hetjob` between the components, before the first command: {len(options)} components, "
            f"{len(blocks) - 1} such lines"
        )
    for index, wanted in enumerate(options):
        block = blocks[index] if index < len(blocks) else []
        read = f" {' '.join(block)} "
        if lost := [option for option in wanted if f" {option} " not in read]:
            named = "none of them" if lost == list(wanted) else f"not {', '.join(lost)}"
            yield f"the {_PREFIX} lines of component {index}, before the first command: {named}"
    if not any(LEADER in line for line in script.splitlines() if not line.lstrip().startswith("#")):
        yield f"the leader's command: {{{{ python }}}} {LEADER}"
    if config not in script:
        yield "the config on the leader's standard input: {{ config }}"


def _blocks(script: str) -> list[list[str]]:
    """The options by component; sbatch reads them down to the first line that is no comment."""
    blocks: list[list[str]] = [[]]
    for line in script.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        option = line.removeprefix(_PREFIX)
        if option == line:
            continue
        if option.strip() == "hetjob":
            blocks.append([])
        else:
            blocks[-1].append(option.strip())
    return blocks
