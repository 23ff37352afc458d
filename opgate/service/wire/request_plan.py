"""What the gateway knows of a request when it has read its envelope, and keeps for other requests like it.

The envelope of a request, and of an answer, is all of it but the data of its tensors.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Container, Mapping, Sequence
from operator import attrgetter
from typing import Generic, Self, TypeVar

from opgate.service.core.checks import Fit, Limits
from opgate.service.core.request import Array, Options, Request
from opgate.service.core.spec import ModelSpec
from opgate.service.shared_memory import Regions
from opgate.service.wire.kserve_rules import Output, find_sharing
from opgate.service.wire.shared_tensors import SharedInput, SharedTensors

# So many plans are kept of a model, for envelopes of at most so many bytes. A plan keeps the envelopes of answers for
# so many combinations of shapes.
_MAX_PLANS = 512
MAX_PLAN_BYTES = 4096
_MAX_ANSWER_ENVELOPES = 16

Shapes = tuple[tuple[int, ...], ...]
#: Returns the shape of an array.
SHAPE = attrgetter("shape")
A = TypeVar("A")


class Plan(Generic[A]):
    """A checked envelope: all of a request but the data of its tensors. `A` is what a protocol keeps of the answers."""

    __slots__ = ("_envelopes", "answered", "content", "fit", "id", "options", "outputs", "sharing", "spec")

    def __init__(
        self,
        spec: ModelSpec,
        id: str,
        fit: Fit,
        answered: tuple[Output, ...],
        options: Options,
        shared: Sequence[SharedInput],
        content: str,
    ) -> None:
        """`answered` are the outputs as the client wants them, `shared` the inputs in shared memory, and `content` the
        content type of the request, "" if it has none. Raises ServingError as `find_sharing` does."""
        self.spec = spec
        self.id = id
        self.fit = fit
        self.answered = answered
        self.outputs: tuple[str, ...] = ()
        self.options = options
        self.sharing = find_sharing(shared, answered)  # None if no tensor lies in shared memory
        self.content = content
        self._envelopes: dict[Shapes, A] = {}
        self.derive()

    @property
    def may_repeat(self) -> bool:
        """Whether another request may have the same envelope: it has no id, and no place in a sequence."""
        return not self.id and self.options.sequence is None

    def request(self, arrays: dict[str, Array], regions: Regions | None, limits: Limits) -> Request:
        """Returns a request with the data of these inputs. Its context is the plan. Raises ServingError as
        `SharedTensors` does."""
        fit = self.fit
        request = Request(arrays, fit.rows, fit.key, self.outputs, id=self.id, options=self.options, weight=fit.weight)
        request.context = self
        if self.sharing is not None:
            request.shared = SharedTensors(self.sharing, regions, limits)
        return request

    def derive(self) -> None:
        """Sets what depends on `answered`."""
        self.outputs = tuple([output.name for output in self.answered])

    def of(self, result: Mapping[str, Array]) -> Self:
        """Returns the plan of an answer with this result. A model in Python may leave outputs out."""
        if len(result) == len(self.outputs):
            return self
        fewer = copy.copy(self)
        fewer.keep_only(result)
        fewer._envelopes = {}
        fewer.derive()
        return fewer

    def keep_only(self, names: Container[str]) -> None:
        """Leaves out the outputs that have other names."""
        self.answered = tuple([output for output in self.answered if output.name in names])

    def answer_envelope(self, shapes: Shapes) -> A | None:
        """Returns what was kept of an answer whose outputs had these shapes."""
        return self._envelopes.get(shapes)

    def keep_answer_envelope(self, shapes: Shapes, envelope: A, size: int) -> None:
        """Keeps what answers with these shapes have in common, which takes so many bytes."""
        if not self.id and len(self._envelopes) < _MAX_ANSWER_ENVELOPES and size <= MAX_PLAN_BYTES:
            self._envelopes[shapes] = envelope


P = TypeVar("P", bound=Plan)  # type: ignore[type-arg]


class Plans(Generic[P]):
    """The plans of envelopes that came before, for one model or protocol. Any thread may use them."""

    def __init__(self) -> None:
        self._plans: dict[bytes, P] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, envelope: bytes) -> P | None:
        """Returns the plan of an envelope, None if it is not kept."""
        return self._plans.get(envelope)

    def keep(self, envelope: bytes, plan: P) -> None:
        """Keeps a plan if other requests may have its envelope. It takes the place of the oldest if there are many."""
        if len(envelope) > MAX_PLAN_BYTES or not plan.may_repeat:
            return
        with self._lock:
            if len(self._plans) >= _MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[envelope] = plan
