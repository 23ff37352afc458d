from __future__ import annotations

import pytest

from opgate.service.gateway import Gateway
from opgate.service.settings import Settings


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    return folder


@pytest.fixture
def settings(repository, tmp_path):
    # One model is loaded after the other, so that what a test sees of it has an order.
    own = tmp_path / "ops"
    return Settings(model_repository=repository, build_ops=own, ops_path="", model_load_thread_count=1)


@pytest.fixture
def load(settings):
    """A function that loads the repository as it is now and returns the gateway."""

    def make(**changes):
        gateway = Gateway(settings.model_copy(update=changes))
        gateway.catalog.load_all()
        return gateway

    return make


@pytest.fixture
def reason(load):
    """A function that returns why a model of the repository is unavailable."""

    def read(name):
        rows = {row[0]: row for row in load().catalog.index()}
        assert rows[name][2] == "UNAVAILABLE", f"{name} was loaded"
        return rows[name][3]

    return read
