import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = 30.0) -> None:
    """Waits until the condition holds; a test that waits in vain says what for."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {deadline_s:g} s for {what}, in vain"
        time.sleep(0.05)
