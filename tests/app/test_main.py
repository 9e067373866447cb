import json
import os
import signal
import subprocess
import sys
import threading

import httpx2
import pytest
from fastapi.testclient import TestClient

from app import main
from app.settings import Settings


def test_pages_and_api_are_one_application(tmp_path):
    app = main.create_app(Settings(home=tmp_path))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/").headers["content-type"].startswith("text/html")
        assert client.get("/v1/promotions").json() == {"items": [], "next": None}
        assert client.get("/docs").status_code == 404


def test_the_embedded_database_is_made_and_migrated_on_start(tmp_path):
    home = tmp_path / "deep" / "home"
    for _ in range(2):
        app = main.create_app(Settings(home=home))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert client.get("/readyz").status_code == 200
    assert (home / "kc.db").exists()
    assert home.stat().st_mode & 0o077 == 0


def test_a_database_of_ones_own_is_not_migrated_behind_ones_back(tmp_path):
    app = main.create_app(Settings(home=tmp_path, database_url=f"sqlite:///{tmp_path / 'own.db'}"))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/readyz").status_code == 503


@pytest.fixture
def server(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "app.main", "--port", "0", "--no-embedded-worker"],
        env={**os.environ, "KC_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_the_process_serves_logs_json_and_ends_when_told(server):
    lines = []
    for text in server.stderr:
        lines.append(json.loads(text))
        if "running on" in lines[-1]["event"]:
            break
    url = lines[-1]["event"].split("running on ")[1].split()[0]
    assert httpx2.get(f"{url}/readyz").status_code == 200
    server.send_signal(signal.SIGTERM)
    rest = server.stderr.read()
    assert server.wait() in (0, -signal.SIGTERM)
    assert all(json.loads(text) for text in rest.splitlines())


def test_a_worker_that_ends_is_started_anew_and_ends_with_us(monkeypatch):
    stop = threading.Event()
    started = []
    popen = subprocess.Popen

    def counted(arguments, **options):
        started.append(
            popen([sys.executable, "-c", "pass" if not started else "input()"], stdin=subprocess.PIPE)
        )
        if len(started) == 2:
            stop.set()
        return started[-1]

    monkeypatch.setattr(main.subprocess, "Popen", counted)
    monkeypatch.setattr(main, "RESTART_SECONDS", 0)
    main._keep_worker(stop)
    assert [process.poll() is not None for process in started] == [True, True]
    assert started[0].returncode == 0
    for process in started:
        process.stdin.close()


def test_settings_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("KC_HOME", str(tmp_path))
    monkeypatch.setenv("KC_PORT", "9000")
    monkeypatch.setenv("KC_ALLOWED_HOSTS", "kc.internal, other.internal")
    settings = Settings()
    assert (settings.port, settings.allowed_hosts) == (9000, ("kc.internal", "other.internal"))
    assert settings.url == f"sqlite:///{tmp_path / 'kc.db'}"
    assert settings.artifacts == tmp_path / "artifacts"
    assert settings.host == "127.0.0.1"
    with TestClient(main.create_app(settings), base_url="http://kc.internal") as client:
        assert client.get("/healthz").status_code == 200
