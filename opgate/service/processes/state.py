"""What clients have changed, for a gateway process that takes the place of one that died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opgate.service.repository.overrides import Override

Operation = tuple[str, tuple[Any, ...]]


class State:
    """The latest operation for each model, region and setting, in an order that leads to what they led to."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], Operation] = {}

    def operations(self) -> list[Operation]:
        """Returns the operations that a new process must run."""
        return list(self._latest.values())

    def files(self) -> set[Path]:
        """Returns the folders with the files that clients sent."""
        return {folder for operation, arguments in self.operations() for folder in files_of(operation, arguments)}

    def note(self, operation: str, arguments: tuple[Any, ...], value: Any) -> None:
        """Keeps an operation that has succeeded everywhere. `value` is what it returned."""
        match operation:
            case "load":
                name = arguments[0]
                for other in value:  # what came with the model; it may have been loaded for itself before
                    if other != name and self._latest.get(("model", other), ("", ()))[0] != "load":
                        self._put(("model", other), "load", (other, Override()))
                self._put(("model", name), operation, arguments)
            case "unload":
                for name in value:
                    self._put(("model", name), operation, (name, False))
            case "register" | "register_cuda":
                self._put(("region", arguments[0]), operation, arguments)
            case "unregister" | "unregister_cuda":
                for key, (registered, _) in list(self._latest.items()):
                    if f"un{registered}" == operation and arguments[0] in ("", key[1]):
                        del self._latest[key]
            case "trace" | "log":
                *model, changes = arguments
                key = (operation, model[0] if model else "")
                _, before = self._latest.get(key, ("", ({},)))
                self._put(key, operation, (*model, {**before[-1], **changes}))

    def _put(self, key: tuple[str, str], operation: str, arguments: tuple[Any, ...]) -> None:
        self._latest.pop(key, None)  # the latest is the last
        self._latest[key] = (operation, arguments)


def files_of(operation: str, arguments: tuple[Any, ...]) -> set[Path]:
    """Returns the folder with the files that a client sent with a load, if it did."""
    if operation != "load":
        return set()
    override: Override = arguments[1]
    return set() if override.folder is None else {override.folder}
