"""A control plane with everything registered, its clock standing still until turned."""

import pytest

from tests.app.world import World


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.register()
    yield made
    made.database.dispose()
