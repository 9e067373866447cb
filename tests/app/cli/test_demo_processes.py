from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from app.cli.demo_processes import Processes, free_port
from app.cli.errors import CliError

# A server with a child of its own, which ignores SIGTERM and would outlive it.
SERVER = """
import http.server, os, pathlib, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c",
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"],
    stdout=subprocess.PIPE)
child.stdout.readline()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(str(child.pid).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    (tmp_path / "family.py").write_text(SERVER)
    (tmp_path / "broken.py").write_text("raise SystemExit('the weights are missing')")
    return Processes(tmp_path / "logs", {"PYTHONPATH": str(tmp_path)})


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def start_family(processes: Processes) -> int:
    import httpx2

    port = free_port(0)
    processes.start("family", "family", str(port))
    processes.wait_healthy("family", f"http://127.0.0.1:{port}/")
    return int(httpx2.get(f"http://127.0.0.1:{port}/").text)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("error", [None, KeyboardInterrupt, CliError])
def test_nobody_is_left_behind(processes: Processes, error: type[BaseException] | None) -> None:
    grandchild = None
    try:
        with processes:
            grandchild = start_family(processes)
            assert alive(grandchild)
            if error is not None:
                raise error("stop")
    except (KeyboardInterrupt, CliError):
        assert error is not None
    assert grandchild is not None
    assert not alive(grandchild)


def test_a_termination_is_an_exit_like_any_other(processes: Processes) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, processes:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_server_that_ends_is_told_with_its_last_words(processes: Processes) -> None:
    message = r"(?s)broken ended .* status 1.*the weights are missing"
    with processes:
        processes.start("broken", "broken")
        with pytest.raises(CliError, match=message):
            processes.wait_healthy("broken", f"http://127.0.0.1:{free_port(0)}/")


def test_a_step_that_fails_is_told(processes: Processes) -> None:
    with processes, pytest.raises(CliError, match="broken failed: python -m broken ended with status 1"):
        processes.run("broken", "broken")


def test_a_taken_port_is_avoided() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert free_port(taken.getsockname()[1]) != taken.getsockname()[1]
