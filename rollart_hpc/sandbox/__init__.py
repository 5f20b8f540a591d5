"""Sandboxes: where text of the policy is executed. Public: environments and reward functions import it.

    with open_sandbox(root=image.root) as sandbox:
        result = sandbox.run("python -m pytest -q", timeout_s=60.0)

The calls block; use them from threads (`EnvironmentProperties.thread_safe`). The bounds are those of the run's
``[sandbox]``, unless given.
"""

from rollart_hpc.sandbox.open import available_runtime, open_sandbox
from rollart_hpc.sandbox.sandbox import CommandResult, Sandbox

__all__ = ["CommandResult", "Sandbox", "available_runtime", "open_sandbox"]
