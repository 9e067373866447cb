"""A kernel's process is watched from outside and leaves nothing behind, however it ends."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from workers.kernels import child
from workers.kernels.child import Child, KernelDied, KernelOutOfMemory, KernelTimeout, Limits

PYTHON = Path(sys.executable)
LIMITS = Limits(start_s=30, call_s=30, silence_s=30)

# Stand-ins for an interpreter: they get the arguments it gets, from `-P` on.
SILENT = "import signal; signal.pause()"
GREEDY = (
    "import signal; held = bytearray(300 * 2**20); held[::4096] = b'x' * len(held[::4096]); signal.pause()"
)
FAILING = "import sys; print('no such library: libx.so', file=sys.stderr); sys.exit(7)"
RAMBLING = "import os; os.write(int(sys.argv[5]), b'what is this?')"
PARENT = """
import signal, subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True)
signal.pause()
"""


def interpreter(folder: Path, code: str) -> Path:
    file = folder / "python"
    file.write_text(f"#!{sys.executable} -S\nimport sys\n{code}\n")
    file.chmod(0o755)
    return file


def gone(pid: int) -> bool:
    try:
        psutil.Process(pid).wait(timeout=10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


@pytest.fixture
def started():
    children = []

    def start(python=PYTHON, limits=LIMITS):
        children.append(Child(python, "a kernel", limits))
        return children[-1]

    yield start
    for one in children:
        one.kill()
        assert gone(one.pid)


def test_calls_are_answered(started):
    answer, fds = started().ask({"call": "logits"})
    assert answer["error"]["type"] == "KeyError"
    assert fds == []


def test_killed_from_outside(started):
    kernel = started()
    kernel.ask({"call": "nothing"})
    os.kill(kernel.pid, signal.SIGKILL)
    with pytest.raises(KernelDied, match="a kernel: killed by SIGKILL") as caught:
        kernel.ask({"call": "nothing"})
    assert caught.value.status == -signal.SIGKILL
    assert not kernel.alive
    with pytest.raises(KernelDied):  # and again, without a wait
        kernel.ask({"call": "nothing"})


def test_ending_by_itself_says_what_it_last_said(started, tmp_path):
    with pytest.raises(KernelDied, match=r"ended with status 7.*\n.*libx\.so") as caught:
        started(interpreter(tmp_path, FAILING)).ask({"call": "load"})
    assert caught.value.status == 7


def test_silence(started, tmp_path):
    kernel = started(interpreter(tmp_path, SILENT), Limits(silence_s=0.3))
    with pytest.raises(KernelTimeout, match=r"no sign of life for 0\.3 s"):
        kernel.ask({"call": "load"})


def test_a_stopped_process_is_silent(started):
    kernel = started(limits=Limits(silence_s=1.0))
    kernel.ask({"call": "nothing"})
    os.kill(kernel.pid, signal.SIGSTOP)
    with pytest.raises(KernelTimeout):
        kernel.ask({"call": "nothing"})


def test_an_answer_that_does_not_come(started, tmp_path):
    kernel = started(interpreter(tmp_path, SILENT))
    with pytest.raises(KernelTimeout, match=r"no answer to load in 0\.2 s"):
        kernel.ask({"call": "load"}, timeout_s=0.2)


def test_more_memory_than_it_may_use(started, tmp_path):
    kernel = started(interpreter(tmp_path, GREEDY), Limits(memory_bytes=100 * 2**20))
    with pytest.raises(KernelOutOfMemory, match=r"more than the 0\.10 GiB it may use"):
        kernel.ask({"call": "load"})
    assert kernel.peak_bytes > 100 * 2**20


def test_what_is_no_message(started, tmp_path):
    with pytest.raises(KernelDied):
        started(interpreter(tmp_path, RAMBLING)).ask({"call": "load"})


def test_no_such_interpreter(tmp_path):
    with pytest.raises(KernelDied, match="cannot be started: No such file"):
        Child(tmp_path / "python", "a kernel")


def test_an_interrupted_wait_kills(started, tmp_path):
    class Interrupted(BaseException):
        pass

    def interrupt(_number, _frame):
        raise Interrupted

    kernel = started(interpreter(tmp_path, SILENT))
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Interrupted):
            kernel.ask({"call": "load"})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert gone(kernel.pid)


def test_what_it_started_dies_with_it(tmp_path):
    kernel = Child(interpreter(tmp_path, PARENT), "a kernel", LIMITS)
    deadline = threading.Event()
    while not (found := psutil.Process(kernel.pid).children()):
        deadline.wait(0.02)
    kernel.kill()
    assert all(gone(one.pid) for one in found)


def test_it_dies_with_the_process_that_started_it():
    code = (
        "import os, signal; from pathlib import Path; import sys\n"
        "from workers.kernels.child import Child\n"
        "kernel = Child(Path(sys.executable), 'a kernel')\n"
        "kernel.ask({'call': 'nothing'})\n"
        "print(kernel.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert gone(int(run.stdout))


def test_secrets_stay_here(monkeypatch):
    monkeypatch.setenv("KC_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    seen = child._environment(Path("/room"), threads=3)
    assert "secret" not in seen.values()
    assert seen["PYTHONPATH"] == "/room"
    assert (seen["VLLM_CPU_KVCACHE_SPACE"], seen["OMP_NUM_THREADS"]) == ("1", "3")


def test_only_two_packages_are_to_be_had():
    room = child._room()
    assert sorted(path.name for path in room.iterdir()) == ["contracts", "workers"]
    for path in room.iterdir():
        path.unlink()
    room.rmdir()
