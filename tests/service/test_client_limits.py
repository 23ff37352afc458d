"""Clients send no more requests in a second than they may."""

from __future__ import annotations

import pytest

from opgate.service import client_limits
from opgate.service.client_limits import ClientLimits, read_limits


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(client_limits, "monotonic", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


def limits(text):
    return ClientLimits(read_limits(text))


def let_through(limited, count, headers=(), peer="10.0.0.1"):
    """Returns how many of so many requests are let through at once."""
    return sum(not limited.take(headers, peer)[2] for _ in range(count))


def test_a_client_has_its_rate_whatever_its_address(clock):
    limited = limits("alice:X-Api-Key=s3cret:5")
    key = [("x-api-key", b"s3cret")]
    assert let_through(limited, 4, key) + let_through(limited, 4, key, "10.0.0.2") == 5
    clock(0.41)
    assert let_through(limited, 10, key) == 2
    clock(100)
    assert let_through(limited, 10, key) == 5
    assert limited.refused == {"alice": 3 + 8 + 5}


def test_others_are_limited_by_address_and_without_a_limit_not_at_all(clock):
    limited = limits("alice:key=a:1; *:2")
    assert let_through(limited, 9, [("key", "wrong")], "10.0.0.1") == 2
    assert let_through(limited, 9, [], "10.0.0.1") == 0
    assert let_through(limited, 9, [], "10.0.0.2") == 2
    assert let_through(limits("alice:key=a:1"), 9) == 9


def test_a_slow_rate_lets_one_through_and_says_when_the_next(clock):
    limited = limits("*:0.1")
    assert limited.take((), "a") == ("*", 0.1, 0.0)
    clock(2)
    assert limited.take((), "a")[2] == pytest.approx(8)
    clock(8.01)
    assert not limited.take((), "a")[2]


def test_no_more_addresses_are_kept_than_a_number_of_them(clock):
    limited = limits("*:1")
    for i in range(client_limits._MOST_ADDRESSES + 10):
        limited.take((), str(i))
    assert len(limited._addresses) == client_limits._MOST_ADDRESSES


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alice", "expected <name>:<header>=<value>"),
        ("alice:key=secret", "expected <name>:<header>=<value>"),
        ("alice:key=secret:0", "more than 0"),
        ("*:0", "more than 0"),
        ("*:1;*:2", "'\\*' has two limits"),
        ("a:k=v:1;a:k=w:1", "'a' has two limits"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(text, said):
    with pytest.raises(ValueError, match=said) as raised:
        read_limits(text)
    assert "secret" not in str(raised.value)


def test_a_value_may_have_colons():
    (limit,) = read_limits("a:authorization=Bearer x:y:7")
    assert (limit.value, limit.rate) == ("Bearer x:y", 7)
