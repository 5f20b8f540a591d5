"""The measurement of rewards at a faulty endpoint, small."""

import pytest

from rollart_hpc.cli.bench_rewards import measure


@pytest.mark.parametrize("hedge_after_s", [None, 0.1], ids=["plain", "hedged"])
async def test_no_score_is_lost_double_or_wrong_whatever_the_endpoint_does(hedge_after_s: float | None) -> None:
    result = await measure(800, 400, hedge_after_s=hedge_after_s, fallback_after_s=0.2, seed=1)
    assert (result["calls"], result["lost"], result["double"], result["wrong"]) == (800, 0, 0, 0)
    assert result["serverless"] > 0
    # A busy machine makes the endpoint look silent: it is then left alone for most of the time.
    assert result["endpoint_faults"]
    assert "no result for anybody" in result["fallbacks"]
    assert (result["hedges_won"] == "0 of 0") == (hedge_after_s is None)
