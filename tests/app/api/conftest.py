"""The API on a database of its own, with everything registered through it."""

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.app.world import BUILDS, CONTRACT, ENDPOINTS, STEADY, TARGET, write_checkpoint, write_suite

BASE = "http://127.0.0.1:8321"
YAML = {"content-type": "application/yaml"}


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "kc")


@pytest.fixture
def app(settings):
    return create_app(settings)


@pytest.fixture
def api(app):
    with TestClient(app, base_url=BASE) as client:
        yield client


@pytest.fixture
def registered(api, tmp_path):
    """The client, after everything was registered: the answers by collection."""
    checkpoint, suite = write_checkpoint(tmp_path / "model"), write_suite(tmp_path / "suite.jsonl")
    answers = [api.post("/v1/contracts", content=CONTRACT, headers=YAML)]
    answers.append(api.post("/v1/checkpoints", json={"name": "model", "path": str(checkpoint)}))
    answers += [api.post("/v1/kernel-builds", json={"name": n, "spec": s}) for n, s in BUILDS.items()]
    answers.append(api.post("/v1/suites", json={"name": "suite", "path": str(suite)}))
    deployment = {"name": TARGET, "known_good": STEADY, "endpoints": ENDPOINTS}
    answers.append(api.post("/v1/deployments", json=deployment))
    assert [answer.status_code for answer in answers] == [201] * len(answers), [a.text for a in answers]
    return api
