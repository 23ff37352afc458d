"""Lets instances of all models run only while the resources that they need are free. Priorities share these out.

This is the rate limiter of Triton. If it is fair, the cores are such a resource too, and models have their time by the
shares that they have. Everything here happens on the event loop's thread, except `RateLimiter.add`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opgate.service.core.errors import Kind, ServingError


class Resource(NamedTuple):
    """A resource of one device, or one that all devices share if `device` is None. The name is in lower case."""

    name: str
    device: int | None


class Supply(NamedTuple):
    """How many copies of a resource the operator provides: on one device, or on each if `device` is None."""

    name: str
    copies: int
    device: int | None


#: What an instance on the CPU needs if the rate limiter is fair.
CORE = Resource("opgate.core", None)


@dataclass(frozen=True, slots=True)
class Demand:
    """What an instance needs while it runs. One with priority 2 gets half as many turns as one with priority 1.

    With a `share` it is the time of runs that counts, of all instances of a model together. A model with share 2 gets
    twice the time of one with share 1.
    """

    resources: Mapping[Resource, int]
    priority: int = 1
    share: float = 0.0


def read_supplies(text: str) -> list[Supply]:
    """Reads "name:count" and "name:count:device", joined by commas. Raises ValueError that says what is wrong."""
    supplies = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, *numbers = part.split(":")
        if not name or not 1 <= len(numbers) <= 2 or not all(n.isascii() and n.isdecimal() for n in numbers):
            raise ValueError(f"'{part}' is not <resource>:<count> or <resource>:<count>:<device>")
        copies, *device = map(int, numbers)
        supplies.append(Supply(name.lower(), copies, device[0] if device else None))
    return supplies


class Account:
    """What has been used by a claim, or by all claims of a model whose time counts."""

    __slots__ = ("last", "turn")

    def __init__(self) -> None:
        self.turn = 0.0  # the claim with the lowest turn goes first
        self.last = 0.0  # what the last run added to that


class Claim:
    """The claim of one instance to its resources. It waits for them, or has them, or neither."""

    __slots__ = ("_limiter", "account", "charged", "demand", "wake")

    def __init__(self, limiter: RateLimiter, demand: Demand, account: Account) -> None:
        self._limiter = limiter
        self.demand = demand
        self.account = account
        self.charged = 0.0  # what the run under way is taken to use
        self.wake: Callable[[], None] = _nothing  # is called when it may be its turn

    @property
    def turn(self) -> float:
        """The claim with the lowest turn goes first."""
        return self.account.turn

    def take(self) -> bool:
        """Takes the resources if they are free and no other claim goes first. Otherwise it waits, until `withdraw`."""
        return self._limiter.take(self)

    def give_back(self, ns: int) -> None:
        """Gives the resources back after a run of so many nanoseconds."""
        self._limiter.give_back(self, ns)

    def withdraw(self) -> None:
        """Doesn't wait any more."""
        self._limiter.withdraw(self)

    def remove(self) -> None:
        """Leaves the limiter, because the instance is gone. It must not have its resources."""
        self._limiter.remove(self)


class RateLimiter:
    """The resources of a process, and the instances that need them."""

    def __init__(self, supplies: Sequence[Supply] = ()) -> None:
        """Of a resource without a supply there are as many copies as the instance wants that wants the most. With a
        supply of `CORE` the limiter is fair."""
        self._supplies = tuple(supplies)
        self.fair = any(supply.name == CORE.name for supply in supplies)
        self._lock = threading.Lock()  # for the two below: a model may be loaded on a thread
        self._claims: list[Claim] = []
        self._limits: dict[Resource, int] = {}
        self._used: Counter[Resource] = Counter()
        self._waiting: dict[Claim, None] = {}  # in the order in which they began to wait
        self._turn = 0.0  # that of the claim which got its resources last

    def add(self, demands: Sequence[Demand]) -> list[Claim]:
        """Adds the instances of a model. Raises ServingError (UNAVAILABLE) if they could never run.

        Any thread may call it.
        """
        of_model = Account()
        claims = [Claim(self, demand, of_model if demand.share else Account()) for demand in demands]
        with self._lock:
            limits = self._limits_for([*self._claims, *claims])
            for demand in demands:
                _check(demand, limits)
            self._claims += claims
            self._limits = limits
        return claims

    def _limits_for(self, claims: Sequence[Claim]) -> dict[Resource, int]:
        limits: dict[Resource, int] = {}
        for claim in claims:
            for resource, count in claim.demand.resources.items():
                limits[resource] = max(count, limits.get(resource, 0))
        for resource in limits:
            provided = [
                supply.copies
                for supply in self._supplies
                if supply.name == resource.name
                and (resource.device is None or supply.device in (None, resource.device))
            ]
            if provided:
                limits[resource] = max(provided)
        return limits

    def take(self, claim: Claim) -> bool:
        """See Claim."""
        if claim not in self._waiting:
            # One that had nothing to run for a while can't make up for it.
            claim.account.turn = max(claim.turn, self._turn)
            self._waiting[claim] = None
        if claim not in self._next():
            return False
        del self._waiting[claim]
        self._used.update(claim.demand.resources)
        self._turn = max(self._turn, claim.turn)
        account = claim.account
        claim.charged = account.last if claim.demand.share else claim.demand.priority
        account.turn += claim.charged
        return True

    def give_back(self, claim: Claim, ns: int) -> None:
        """See Claim."""
        self._used.subtract(claim.demand.resources)
        if claim.demand.share:
            account, used = claim.account, ns / claim.demand.share
            account.turn += used - claim.charged
            account.last = used
        self._wake()

    def withdraw(self, claim: Claim) -> None:
        """See Claim."""
        if claim in self._waiting:
            del self._waiting[claim]
            self._wake()

    def remove(self, claim: Claim) -> None:
        """See Claim."""
        with self._lock:
            self._claims.remove(claim)
            self._limits = self._limits_for(self._claims)
        self.withdraw(claim)

    def _wake(self) -> None:
        for claim in list(self._next()):
            claim.wake()

    def _next(self) -> Iterator[Claim]:
        """Yields the waiting claims that can have their resources now.

        Those that come first are served first: what they need is kept for them, so that a claim to much isn't overtaken
        for ever by claims to little.
        """
        kept: Counter[Resource] = Counter()
        for claim in sorted(self._waiting, key=lambda claim: claim.turn):
            needed = claim.demand.resources
            if all(
                self._used[resource] + kept[resource] + count <= self._limits[resource]
                for resource, count in needed.items()
            ):
                yield claim
            kept.update(needed)


def _check(demand: Demand, limits: Mapping[Resource, int]) -> None:
    for resource, count in demand.resources.items():
        if count > limits[resource]:
            text = (
                f"instance_group.rate_limiter.resources '{resource.name}': the instance needs {count}, "
                f"--rate-limit-resource (OPGATE_RATE_LIMIT_RESOURCE) provides {limits[resource]}"
            )
            raise ServingError(Kind.UNAVAILABLE, text)
        if any(other.name == resource.name and (other.device is None) != (resource.device is None) for other in limits):
            text = (
                f"instance_group.rate_limiter.resources '{resource.name}': "
                "some instances ask for it as global, and some as a resource of their device"
            )
            raise ServingError(Kind.UNAVAILABLE, text)


def _nothing() -> None:
    return None
