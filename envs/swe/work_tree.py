"""A sandbox that holds the repository of a task at its base commit: where the policy works, and where it is graded.

Invariant: nothing of the hidden tests and of the gold patch is in it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from rollart_hpc.config.node import NodeSettings
from rollart_hpc.envs.swe.instance import Instance
from rollart_hpc.errors import SandboxError
from rollart_hpc.images import use_image
from rollart_hpc.sandbox import Sandbox, open_sandbox

_ENVIRONMENT = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_CONFIG_NOSYSTEM": "1",
    "PIP_PROGRESS_BAR": "off",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TQDM_DISABLE": "1",
    # The files may belong to another user than the sandbox's.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
COMMITTER = {
    f"GIT_{who}_{field}": value
    for who in ("AUTHOR", "COMMITTER")
    for field, value in {"NAME": "base", "EMAIL": "base@localhost", "DATE": "2000-01-01T00:00:00Z"}.items()
}
COMMIT = (
    "git -c init.defaultBranch=main init -q && git add -A -f && "
    "git -c core.hooksPath=/dev/null commit -q --allow-empty -m base && git rev-parse HEAD"
)
"""Makes a base commit of a directory; with `COMMITTER` its hash depends on the files alone."""
_PREPARE_TIMEOUT_S = 300.0


@contextmanager
def open_work_tree(instance: Instance, *, min_output_kb: int = 1) -> Generator[Sandbox]:
    """A new sandbox with the repository at its base commit, which is HEAD; commands run in its directory.

    Args:
        instance: the task.
        min_output_kb: what a command may print at least; more where the run's ``[sandbox]`` allows more.

    Raises:
        ValueError: the snapshot is not the one that the row names.
        SandboxError, ImageError: it cannot be opened.
    """
    with ExitStack() as held:
        root, environment = None, dict(_ENVIRONMENT)
        if instance.image:
            image = held.enter_context(use_image(instance.image))
            # SWE-bench's images activate the repository's environment there; bash reads it before every command.
            environment = {"BASH_ENV": "/root/.bashrc"} | image.environment | environment
            root = image.root
        settings = NodeSettings.current().sandbox
        settings = settings.model_copy(update={"max_output_kb": max(settings.max_output_kb, min_output_kb)})
        sandbox = held.enter_context(
            open_sandbox(root=root, directory=instance.directory, environment=environment, settings=settings)
        )
        if instance.snapshot:
            _unpack(instance, instance.snapshot.read(), sandbox)
        yield sandbox


def _unpack(instance: Instance, tar: bytes, sandbox: Sandbox) -> None:
    result = sandbox.run(
        f"tar -xf - --no-same-owner && {COMMIT}", timeout_s=_PREPARE_TIMEOUT_S, environment=COMMITTER, stdin=tar
    )
    if result.exit_code or result.ending != "exit":
        raise SandboxError(f"{instance.instance_id} cannot be unpacked ({result.ending}): {result.output[-2000:]}")
    head = result.output.split()[-1]
    if instance.base_commit and head != instance.base_commit:
        raise ValueError(f"{instance.instance_id}: the snapshot is commit {head}, the row says {instance.base_commit}")
