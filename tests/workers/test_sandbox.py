"""Programs nobody trusts: what they try, and what comes of it."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from workers import sandbox
from workers.sandbox import End, Limits, SandboxUnavailable, run

QUICK = Limits(seconds=8.0, cpu_s=1, memory_bytes=256 * 2**20)


def of(text, limits=QUICK):
    return run(textwrap.dedent(text), limits)


@pytest.fixture(autouse=True)
def _confined():
    try:
        run("pass")
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def test_a_program_and_its_output():
    outcome = of("import sys, json; print(json.dumps([1]), file=sys.stderr); print('é'); sys.exit(3)")
    assert (outcome.end, outcome.status) == (End.EXITED, 3)
    assert "[1]" in outcome.output
    assert "é" in outcome.output
    assert of("pass").status == 0


def test_an_exception_is_a_failure():
    outcome = of("assert 1 == 2, 'no'")
    assert outcome.status == 1
    assert "AssertionError: no" in outcome.output


def test_an_endless_loop_ends():
    started = time.monotonic()
    assert of("while True: pass").end is End.KILLED
    assert of("import time; time.sleep(100)", Limits(seconds=0.5)).end is End.TIMEOUT
    assert time.monotonic() - started < 30


def test_signals_do_not_save_it():
    outcome = of(
        """
        import signal, time
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True: time.sleep(1)
        """,
        Limits(seconds=0.5),
    )
    assert outcome.end is End.TIMEOUT


def test_memory_is_limited():
    outcome = of("x = bytearray(10**10)")
    assert outcome.status == 1
    assert "MemoryError" in outcome.output


def test_output_is_limited():
    outcome = of("while True: print('x' * 1000)", Limits(output_bytes=5000))
    assert outcome.end is End.OUTPUT
    assert len(outcome.output) == 5000


def test_forks_are_limited():
    outcome = of(
        """
        import os, time
        made = 0
        try:
            while True:
                if os.fork() == 0:
                    time.sleep(1000)
                made += 1
                time.sleep(0.02)
        except OSError:
            print('made', made, flush=True)
            time.sleep(1000)
        """,
        Limits(seconds=4.0),
    )
    # Stopped by the system's limit, or by whoever watches where that does not hold.
    assert outcome.end is End.KILLED or int(outcome.output.split()[1]) < Limits().processes


def test_a_daemon_ends_with_the_program():
    name = f"sandbox-daemon-{os.getpid()}"
    outcome = of(
        f"""
        import os, sys
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 3)
                os.execv(sys.executable, [{name!r}, '-c', 'import time; time.sleep(1000)'])
            os._exit(0)
        print('left')
        """
    )
    assert (outcome.status, "left" in outcome.output) == (0, True)
    assert not [p for p in psutil.process_iter(["cmdline"]) if name in (p.info["cmdline"] or [])]


def test_there_is_no_network():
    outcome = of(
        """
        import socket
        for target in (('127.0.0.1', 22), ('1.1.1.1', 53)):
            try:
                socket.create_connection(target, 1)
            except OSError as error:
                print('refused', type(error).__name__)
        """
    )
    assert outcome.output.count("refused") == 2


def test_the_environment_is_empty(monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cret")
    outcome = of("import os; print(sorted(os.environ)); print(open('/proc/self/environ').read())")
    assert "s3cret" not in outcome.output
    assert "API_TOKEN" not in outcome.output


def test_files_of_others_can_be_neither_read_nor_written(tmp_path: Path):
    (tmp_path / "secret").write_text("s3cret")
    outcome = of(
        f"""
        import os
        for path, mode in (({str(tmp_path / "secret")!r}, 'r'), ({str(tmp_path / "new")!r}, 'w'),
                           ('/etc/passwd', 'r'), ('/proc/1/environ', 'r')):
            try:
                print(open(path, mode).read())
            except OSError as error:
                print('refused')
        open('mine', 'w').write('x')
        print(os.listdir('.'))
        """
    )
    assert outcome.output.count("refused") == 4
    assert "'mine'" in outcome.output
    assert not (tmp_path / "new").exists()


def test_its_disk_is_small():
    outcome = of(
        """
        try:
            for i in range(10**6):
                open(str(i), 'wb').write(b'x' * 10**6)
        except OSError as error:
            print('full', i)
        """
    )
    assert outcome.output.startswith("full")
    assert int(outcome.output.split()[1]) <= 16


def test_it_cannot_reach_its_parents():
    outcome = of(
        """
        import os, signal
        print(os.getppid())
        for pid in (1, os.getppid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError as error:
                print('refused')
        print('here')
        """
    )
    assert outcome.output.splitlines()[0] == "1"
    assert "here" in outcome.output


def test_nothing_is_left_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    of("open('x', 'w').write('y')")
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_confined_nothing_is_run(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text("import os; os.write(2, b'sandbox: namespaces: no'); os._exit(125)")
    monkeypatch.setattr(sandbox, "_CHILD", child)
    with pytest.raises(SandboxUnavailable, match="cannot be confined"):
        run("print('ran')")
