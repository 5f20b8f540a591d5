import pytest

from rollart_hpc.rewards import circuit
from rollart_hpc.rewards.circuit import CircuitBreaker


def test_the_circuit_opens_after_failures_in_a_row_and_lets_one_call_try_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(circuit.time, "monotonic", lambda: now)
    breaker = CircuitBreaker(failures=2, open_s=10)
    breaker.record(success=False)
    breaker.record(success=True)
    breaker.record(success=False)
    assert breaker.admits()
    breaker.record(success=False)
    assert not breaker.admits()
    now = 111.0
    assert [breaker.admits(), breaker.admits()] == [True, False]
    breaker.record(success=False)
    now = 120.0
    assert not breaker.admits()
    now = 122.0
    assert breaker.admits()
    breaker.record(success=True)
    assert [breaker.admits(), breaker.admits()] == [True, True]
