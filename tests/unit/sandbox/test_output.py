import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.sandbox.output import HeadAndTail


@given(st.lists(st.binary(max_size=40)), st.integers(min_value=2, max_value=50))
def test_the_first_and_the_last_half_are_kept_and_the_rest_is_counted(chunks: list[bytes], limit: int):
    kept = HeadAndTail(limit)
    for chunk in chunks:
        kept.add(chunk)
    whole = b"".join(chunks)
    if len(whole) <= limit:
        assert kept.text() == whole.decode(errors="replace")
        return
    head, tail = whole[: limit - limit // 2], whole[len(whole) - limit // 2 :]
    dropped = f"\n[... {len(whole) - limit} bytes of output were dropped ...]\n"
    assert kept.text() == head.decode(errors="replace") + dropped + tail.decode(errors="replace")
    assert kept.head() == head


@pytest.mark.parametrize("limit", [1 << 16])
def test_memory_stays_bounded(limit: int):
    kept = HeadAndTail(limit)
    for _ in range(1000):
        kept.add(bytes(1 << 14))
        assert len(kept._tail) <= limit + (1 << 14)
