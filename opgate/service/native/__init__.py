"""The compiled parts of the gateway. Installing the package compiles them, see build_hook.py."""

try:
    from opgate.service.native import engine_strings, json_tensors, process
except ImportError as error:
    raise ImportError(
        f"the gateway's native modules aren't compiled: run `pip install --editable .` ({error})"
    ) from error

__all__ = ["engine_strings", "json_tensors", "process"]
