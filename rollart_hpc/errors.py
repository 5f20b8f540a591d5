"""Every exception that rollart_hpc raises on purpose.

    RollartError
    ├── ConfigError            the run's configuration or its inputs are wrong (exit code 2)
    ├── WorkerDeclarationError a Worker class or a decorator is used wrongly (at class creation)
    ├── BusError               the message bus did not do what it promised
    │   ├── NotReachableError  no answer within the deadline; retryable
    │   ├── RemoteError        the remote method raised; carries its text
    │   ├── FencedError        a newer holder owns this name; the caller must end
    │   └── NameTakenError     somebody else has the name; the caller takes another (exit code 2)
    ├── WeightsError           weights could not be published, pulled or loaded
    │   ├── CorruptWeightsError  a checksum or size differs; retryable
    │   ├── MissingWeightsError  the store lost or never had the version; retryable
    │   └── StoreFullError     the store has no room until old versions are collected; retryable
    ├── EngineError            an engine was lost, closed, or asked for what its state forbids
    ├── EnvironmentFault       an environment failed for a reason that is not the policy's
    ├── SandboxError           a sandbox could not be opened or was lost; retryable unless the node has none
    ├── ImageError             an image could not be had; says whether trying again may help
    ├── RewardFault            a reward could not be computed; never a reward of 0
    ├── PreflightError         the cluster cannot run this as it is configured (exit code 3)
    ├── SlurmError             a Slurm command failed; carries its own words (exit code 3)
    │   └── NoSlurmError       there is no Slurm here, or its controller does not answer
    ├── JournalError           the run's journal could not be written, or not be understood
    ├── CheckpointError        a checkpoint is incomplete or contradicts the run
    └── WaitTimeout            a wait passed its deadline; says what for and whom

A failed trajectory is recorded data, not an exception: EnvironmentFault and RewardFault end in the
ledger. A failed service ends its TaskGroup and its process. ``retryable`` says whether the same call
may succeed when it is made again.
"""

import traceback


class RollartError(Exception):
    """Base of all errors raised on purpose."""

    retryable = False
    exit_code = 1


class ConfigError(RollartError):
    """The configuration or its inputs are wrong; the text says what was got, expected and to change."""

    exit_code = 2


class WorkerDeclarationError(RollartError):
    """A Worker class is declared wrongly."""

    exit_code = 2


class BusError(RollartError):
    """The message bus failed."""


class NotReachableError(BusError):
    """The addressee did not answer within the deadline."""

    retryable = True


class RemoteError(BusError):
    """The remote method raised; the text carries its type and message."""

    def __init__(self, text: str, error_type: str = "") -> None:
        super().__init__(text)
        self.error_type = error_type


class FencedError(BusError):
    """A newer holder owns this member's name."""


class NameTakenError(BusError):
    """Another process has the name."""

    exit_code = 2


class WeightsError(RollartError):
    """Weights could not be published, pulled or loaded."""


class CorruptWeightsError(WeightsError):
    """A pulled bucket's checksum or size differs from the manifest."""

    retryable = True


class MissingWeightsError(WeightsError):
    """The store does not hold the version."""

    retryable = True


class StoreFullError(WeightsError):
    """The store has no room, or no memory owner is alive; collecting old versions may help."""

    retryable = True


class EngineError(RollartError):
    """An inference engine was lost, closed, or asked for what its state forbids."""


class EnvironmentFault(RollartError):
    """An environment failed by infrastructure: it raised, hung, died or returned a wrong type."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


class SandboxError(RollartError):
    """A sandbox could not be opened, or died by other hands than its command's; never the policy's fault."""

    retryable = True


class NoSandboxError(SandboxError):
    """No runtime isolates on this node; the text says what was tried and what to change."""

    retryable = False
    exit_code = 3


class ImageError(RollartError):
    """An image could not be pulled: it does not exist, differs from its digest, or no level can be reached."""

    def __init__(self, text: str, *, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


class RewardFault(RollartError):
    """A reward could not be computed or is not a finite number."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


class PreflightError(RollartError):
    """The cluster cannot run this as it is configured; nothing was submitted."""

    exit_code = 3


class SlurmError(RollartError):
    """A Slurm command failed or refused; the text has its own words whole."""

    exit_code = 3


class NoSlurmError(SlurmError):
    """There is no Slurm on this machine, or its controller does not answer."""


class JournalError(RollartError):
    """The journal could not be written or not be understood; the text says where, why and what to do."""


class CheckpointError(RollartError):
    """A checkpoint is incomplete, unreadable or contradicts the run."""

    exit_code = 2


class WaitTimeout(RollartError):
    """A wait passed its deadline."""

    def __init__(self, what: str, whom: str, deadline_s: float) -> None:
        super().__init__(f"waited {deadline_s:g} s for {what} from {whom}, in vain")


def text_of(error: BaseException) -> str:
    """The error's own text; code of users may raise errors that cannot even say what they are."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception as second:
        return f"(its text cannot be made: {type(second).__name__})"


def raised_text(error: BaseException) -> str:
    """What code of users raised, and where: ``ValueError: no digit (my_rewards.py:12)``."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text_of(error)}{where}"
