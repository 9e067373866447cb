import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from app.api import operations
from app.services import promotions
from tests.app.api.conftest import BASE

MEDIA = "application/problem+json"


def check(answer, status):
    assert answer.status_code == status
    assert answer.headers["content-type"] == MEDIA
    body = answer.json()
    assert body["status"] == status
    assert {"type", "title", "detail"} <= set(body)
    assert body["type"].startswith("urn:kernel-contracts:problem:")
    return body


def test_404(api):
    assert "/v1/nothing" in check(api.get("/v1/nothing"), 404)["detail"]


def test_405_names_what_is_allowed(api):
    answer = api.delete("/v1/contracts")
    check(answer, 405)
    assert answer.headers["allow"]


def test_422_points_at_the_member_and_does_not_echo_it(api):
    body = check(api.post("/v1/checkpoints", json={"name": "secret name", "extra": 1}), 422)
    assert {error["pointer"] for error in body["errors"]} == {"/name", "/path", "/extra"}
    assert "secret name" not in str(body)


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"", b"\xff"])
def test_bodies_that_are_not_the_json_asked_for(api, content):
    answer = api.post("/v1/checkpoints", content=content, headers={"content-type": "application/json"})
    check(answer, 422 if content != b"\xff" else answer.status_code)
    assert 400 <= answer.status_code < 500


def test_413_announced_or_not(app, api):
    limit = app.state.settings.max_body_bytes
    headers = {"content-type": "application/yaml"}
    check(api.post("/v1/contracts", content=b"#" * (limit + 1), headers=headers), 413)

    def chunks():
        for _ in range(limit // 65536 + 1):
            yield b"#" * 65536

    check(api.post("/v1/contracts", content=chunks(), headers=headers), 413)


def test_500_says_nothing_of_the_inside(app, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(promotions, "get", broken)
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as client:
        body = check(client.get("/v1/promotions/x"), 500)
    assert "hunter2" not in str(body)


def test_503_when_the_database_does_not_answer(app, monkeypatch):
    def away(*args, **kwargs):
        raise OperationalError("SELECT secret", {}, Exception("disk I/O error"))

    monkeypatch.setattr(promotions, "get", away)
    with TestClient(app, base_url=BASE) as client:
        answer = client.get("/v1/promotions/x")
    body = check(answer, 503)
    assert answer.headers["retry-after"] == "1"
    assert "secret" not in str(body)


def test_a_commit_that_fails_is_never_answered_as_success(registered, app, monkeypatch):
    from sqlalchemy.orm import Session

    def failing(self):
        raise OperationalError("COMMIT", {}, Exception("disk full"))

    monkeypatch.setattr(Session, "_prepare_impl", failing, raising=False)
    monkeypatch.setattr("sqlalchemy.orm.session.SessionTransaction.commit", lambda self, **k: failing(self))
    answer = registered.post("/v1/kernel-builds", json={"name": "late", "spec": "torch"})
    monkeypatch.undo()
    check(answer, 503)
    assert registered.get("/v1/kernel-builds/late").status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "", "8.8.8.8"]
)
def test_other_hosts_are_refused(api, host):
    check(api.get("/v1/contracts", headers={"host": host}), 421)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8321", "LOCALHOST", "[::1]:8321"])
def test_our_own_names_are_answered(api, host):
    assert api.get("/healthz", headers={"host": host}).status_code == 200


def test_pages_of_other_origins_may_not_write(api):
    body = {"name": "x", "spec": "torch"}
    check(api.post("/v1/kernel-builds", json=body, headers={"origin": "http://evil.example"}), 403)
    check(api.post("/v1/kernel-builds", json=body, headers={"origin": "null"}), 403)
    assert api.post("/v1/kernel-builds", json=body, headers={"origin": BASE}).status_code == 201


def test_health_tells_the_truth(api, app, monkeypatch):
    assert api.get("/healthz").json() == {"status": "ok"}
    ready = api.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]) == (200, {"database": "ok", "migrations": "ok"})
    monkeypatch.setattr(operations.migrate, "HEAD", "9999")
    stale = api.get("/readyz")
    assert stale.status_code == 503
    assert "9999" in stale.json()["checks"]["migrations"]


def test_not_ready_without_its_database(app, tmp_path):
    from app.db.session import Database

    with TestClient(app, base_url=BASE) as client:
        app.state.database = Database(f"sqlite:///{tmp_path / 'no' / 'such' / 'place.db'}")
        answer = client.get("/readyz")
        assert client.get("/healthz").status_code == 200
    assert answer.status_code == 503
    assert answer.json()["checks"]["database"].startswith("does not answer")


def test_openapi_documents_every_route_and_answer(api):
    schema = api.get("/v1/openapi.json").json()
    for path, operations_ in schema["paths"].items():
        for method, operation in operations_.items():
            assert operation["summary"], (path, method)
            if path.startswith("/v1") and "{" in path:
                assert "404" in operation["responses"], (path, method)
    assert "application/yaml" in schema["paths"]["/v1/contracts"]["post"]["requestBody"]["content"]
