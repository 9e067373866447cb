import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.services.database import Database
from workers import local
from workers.tasks import Interrupted, Stop

ROOT = Path(__file__).resolve().parents[2]


class Script:
    """Leases as scripted; the last one stops the worker."""

    def __init__(self, stop, *leases):
        self.stop, self.leases = stop, list(leases)

    def __call__(self, database, owner):
        lease = self.leases.pop(0)
        if not self.leases:
            self.stop.event.set()
        if isinstance(lease, BaseException):
            raise lease
        return lease


class Lease:
    job = 1

    class spec:
        promotion = "p"


def work(monkeypatch, *leases, run_job=lambda *_: None):
    stop = Stop()
    done = []

    def doing(database, lease, artifacts, stop):
        done.append(lease)
        run_job(database, lease, artifacts, stop)

    monkeypatch.setattr(local, "next_lease", Script(stop, *leases))
    monkeypatch.setattr(local, "run_job", doing)
    monkeypatch.setattr(local, "PAUSE_SECONDS", 0.0)
    local.run(None, Path("artifacts"), stop, "owner", poll_seconds=0.0)
    return done


def test_jobs_are_done_until_told_to_stop(monkeypatch):
    assert len(work(monkeypatch, Lease(), None, Lease())) == 2


def test_an_error_costs_a_pause_and_not_the_loop(monkeypatch):
    assert len(work(monkeypatch, OSError("away"), Lease())) == 1


def test_an_interrupted_job_ends_it(monkeypatch):
    def interrupted(*_):
        raise Interrupted

    assert len(work(monkeypatch, Lease(), Lease(), run_job=interrupted)) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_worker_cleanly(tmp_path, number):
    # It polls once it has opened the database; its log is what says so.
    code = (
        "import workers.local as l\n"
        "real = l.run\n"
        "def run(*a, **k):\n"
        "    print('running', flush=True)\n"
        "    real(*a, **k)\n"
        "l.run = run\n"
        "raise SystemExit(l.main([]))\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"KC_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with worker:
        assert worker.stdout.readline() == b"running\n"
        worker.send_signal(number)
        assert worker.wait(30) == 0
    Database(f"sqlite:///{tmp_path / 'kc.db'}").dispose()


def test_a_worker_whose_parent_was_killed_ends_by_itself(tmp_path):
    # A parent that starts the worker as the control plane does, and is then killed outright.
    code = (
        "import os, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-m', 'workers.local', '--parent-pid', str(os.getpid())])\n"
        "print('started', flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"KC_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    with parent:
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
        # Ends when the last process that holds it does: the worker.
        logs = parent.stderr.read().decode()
    assert "the control plane is gone" in logs


def test_a_worker_that_lost_its_parent_is_told_like_by_a_signal(monkeypatch):
    stop = Stop()
    told = []
    done = threading.Event()

    def kill(pid, number):
        told.append((pid, number))
        done.set()

    parents = iter([7, 7, 1])
    monkeypatch.setattr(local.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(local.os, "kill", kill)
    local.end_with(7, stop, seconds=0.0)
    assert done.wait(10)
    assert told == [(os.getpid(), signal.SIGTERM)]
