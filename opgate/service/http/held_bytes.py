"""What a connection holds of the bytes that all connections may hold."""

from __future__ import annotations

from opgate.service.core.tensors import SMALL
from opgate.service.rpc.connection import Budget


class HeldBytes:
    """The bytes that the gateway's budget counts of a connection: of its request or of the answer."""

    __slots__ = ("_budget", "_closed", "bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._closed = False
        self.bytes = 0

    def hold(self, size: int, small: bool = False) -> bool:
        """Counts bytes. Returns whether there is room for them."""
        if self._closed:  # nothing is sent any more, so nothing would let them go
            return True
        self.bytes += size
        return self._budget.hold(size, small)

    def hold_answer(self, size: int) -> bool:
        """Counts a large answer until the client has taken it, in the place of its request. Returns whether there is
        room for it."""
        if size <= SMALL:
            return True
        self.let_go()
        if self.hold(size):
            return True
        self.let_go()
        return False

    def let_go(self) -> None:
        """Counts none of the bytes any more."""
        if self.bytes:
            self._budget.let_go(self.bytes)
            self.bytes = 0

    def close(self) -> None:
        """Counts nothing from now on: the connection is lost."""
        self.let_go()
        self._closed = True
