"""Rate limits by token buckets."""

import pytest

from mcp_trio._protocol.rate_limits import Rate, TokenBuckets


def test_a_bucket_is_used_up_by_a_burst_and_fills_at_the_rate():
    buckets, rate = TokenBuckets(), Rate(per_minute=60, burst=3)
    assert [buckets.take("a", rate, 100) for _ in range(4)] == pytest.approx([0, 0, 0, 1])
    assert buckets.take("b", rate, 100) == 0
    assert [buckets.take("a", rate, 102) for _ in range(3)] == pytest.approx([0, 0, 1])


def test_the_bucket_that_was_not_used_for_longest_is_forgotten_if_there_are_too_many():
    buckets, rate = TokenBuckets(), Rate(per_minute=1, burst=1)
    for key in ("first", "second", *range(9_999)):
        assert buckets.take(key, rate, 0) == 0
    assert buckets.take("second", rate, 0) > 0
    assert buckets.take("first", rate, 0) == 0
