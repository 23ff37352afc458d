"""Attaches pre- and post-processing to a network: finds out what a request has, and makes the model for it."""

from __future__ import annotations

from opgate.attach import pictures
from opgate.attach.attached import Attached
from opgate.attach.report import Report
from opgate.attach.wish import Wish


def attach(wish: Wish, name: str) -> Attached:
    """Makes the model `name`. Raises AttachError, RunError and SessionError."""
    return pictures.attach(wish, name, Report())
