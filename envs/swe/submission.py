"""What the policy has done, as a patch."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from rollart_hpc.sandbox import Sandbox

_TIMEOUT_S = 120.0
_DIFF = (
    "rm -f .git/index.lock; "
    "git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.autocrlf=false add -A --ignore-errors; "
    "git -c core.fsmonitor=false diff --cached --binary --full-index --no-renames --no-color --no-ext-diff "
    "--no-textconv --src-prefix=a/ --dst-prefix=b/ {base} > {target}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The changes of the work tree against its base commit, new files included, ignored ones not."""

    patch: bytes = b""
    error: str = ""
    """Why there is none, although the policy may have changed something: its own doing."""

    def info(self) -> dict[str, str]:
        """The fields of ``info`` that carry it."""
        try:
            text, encoding = self.patch.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            text, encoding = self.patch.decode("latin-1"), "latin-1"
        return {"patch": text, "patch_encoding": encoding, "patch_error": self.error}


def take_submission(sandbox: Sandbox, base: str, *, max_bytes: int) -> Submission:
    """Takes the patch. The policy may have broken the repository, git itself or its settings: then there is none.

    Args:
        sandbox: where the policy worked; commands run in the repository.
        base: commit that the patch is against.
        max_bytes: a larger patch is none.

    Raises:
        SandboxError: the sandbox is lost.
    """
    target = f"/tmp/{secrets.token_hex(16)}.patch"
    result = sandbox.run(_DIFF.format(base=base, target=target), timeout_s=_TIMEOUT_S)
    if result.ending != "exit" or result.exit_code:
        return Submission(error=f"git diff failed ({result.ending}, {result.exit_code}): {result.output[-500:]}")
    try:
        patch = sandbox.read_file(target, max_bytes=max_bytes + 1)
    except FileNotFoundError:
        return Submission(error="git diff wrote nothing")
    if len(patch) > max_bytes:
        return Submission(error=f"the patch has over {max_bytes} bytes")
    return Submission(patch=patch)
