"""Every exception that rollart_hpc raises on purpose.

    RollartError
    ├── ConfigError            the run's configuration or its inputs are wrong (exit code 2)
    ├── WorkerDeclarationError a Worker class or a decorator is used wrongly (at class creation)
    ├── BusError               the message bus did not do what it promised
    │   ├── NotReachableError  no answer within the deadline; retryable
    │   ├── RemoteError        the remote method raised; carries its text
    │   └── FencedError        a newer holder owns this name; the caller must end
    ├── WeightsError           weights could not be published, pulled or loaded
    │   ├── CorruptWeightsError  a checksum or size differs; retryable
    │   ├── MissingWeightsError  the store lost or never had the version; retryable
    │   └── StoreFullError     the store has no room until old versions are collected; retryable
    ├── EngineError            an engine was lost, closed, or asked for what its state forbids
    ├── EnvironmentFault       an environment failed for a reason that is not the policy's
    ├── RewardFault            a reward could not be computed; never a reward of 0
    ├── CheckpointError        a checkpoint is incomplete or contradicts the run
    └── WaitTimeout            a wait passed its deadline; says what for and whom

A failed trajectory is recorded data, not an exception: EnvironmentFault and RewardFault end in the
ledger. A failed service ends its TaskGroup and its process. ``retryable`` says whether the same call
may succeed when it is made again.
"""


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


class RewardFault(RollartError):
    """A reward could not be computed or is not a finite number."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


class CheckpointError(RollartError):
    """A checkpoint is incomplete, unreadable or contradicts the run."""

    exit_code = 2


class WaitTimeout(RollartError):
    """A wait passed its deadline."""

    def __init__(self, what: str, whom: str, deadline_s: float) -> None:
        super().__init__(f"waited {deadline_s:g} s for {what} from {whom}, in vain")
