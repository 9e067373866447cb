"""What the process with the kernel answers, without a process."""

import os
import socket
import threading

import pytest
import torch

from contracts.builds import InvalidBuild
from workers.kernels.host import Host, describe, serve
from workers.kernels.protocol import InvalidRequest, KernelError, UnusableCheckpoint
from workers.kernels.wire import Buffer, Connection, Layout


class Kernel:
    """Doubles what it is given."""

    vocab_size = 8

    def logits(self, states):
        return states * 2

    def close(self):
        pass


@pytest.fixture
def host():
    made = Host()
    made._kernel = Kernel()
    return made


def ask(host, states, free=(), fds=None):
    layout = Layout.of(states)
    if fds is None:
        buffer, fd = Buffer.create(layout.end)
        buffer.store(states, layout)
        fds = [fd]
    answer, made = host({"call": "logits", "states": layout.message(), "free": list(free)}, fds)
    for fd in made:
        os.close(fd)
    return answer, bool(made)


def test_buffers_are_used_again_once_free(host):
    states = torch.ones(3, 8)
    first, made = ask(host, states)
    assert made
    second, made = ask(host, states)
    assert made
    assert second["buffer"] != first["buffer"]
    third, made = ask(host, states, free=[first["buffer"]])
    assert (third["buffer"], made) == (first["buffer"], False)
    assert Layout.read(third["logits"]).torch(host._pool[third["buffer"]].map).tolist() == [[2.0] * 8] * 3


def test_a_larger_block_gets_a_larger_buffer(host):
    small, _ = ask(host, torch.ones(1, 8))
    large, made = ask(host, torch.ones(2000, 8), free=[small["buffer"]])
    assert made
    assert large["buffer"] != small["buffer"]


def test_not_more_are_kept_than_are_of_use(host):
    numbers = [ask(host, torch.ones(1, 8))[0]["buffer"] for _ in range(7)]
    answer, _ = ask(host, torch.ones(1, 8), free=numbers)
    assert answer["dropped"] == numbers[:3]
    assert set(host._pool) == set(numbers[3:])


def test_nothing_is_loaded():
    with pytest.raises(KernelError, match="nothing is loaded"):
        Host()({"call": "trace", "requests": [], "sampling": {}}, [])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KernelError("x"), {"type": "KernelError", "message": "x"}),
        (UnusableCheckpoint("x"), {"type": "UnusableCheckpoint", "message": "x"}),
        (InvalidRequest("a: b", "c: d", 3),
         {"type": "InvalidRequest", "message": "c: d", "request": "a: b", "position": 3}),
        (InvalidBuild("x", "w"), {"type": "InvalidBuild", "message": "x", "word": "w"}),
        (MemoryError("x"), {"type": "KernelOutOfMemory", "message": "x"}),
        (torch.OutOfMemoryError("x"), {"type": "KernelOutOfMemory", "message": "x"}),
        (ValueError("x"), {"type": "ValueError", "message": "x"}),
    ],
)  # fmt: skip
def test_errors_by_type(error, told):
    assert describe(error) == told


def test_it_serves_until_the_other_side_closes_and_says_that_it_lives(host, capsys):
    here, there = socket.socketpair()
    thread = threading.Thread(target=serve, args=(Connection(there), 0.01, host))
    thread.start()
    connection = Connection(here)
    assert connection.receive() == ({"alive": True}, [])
    connection.send({"call": "nothing"})
    while "alive" in (answer := connection.receive()[0]):
        pass
    assert answer == {"error": {"type": "KeyError", "message": "'nothing'"}}
    connection.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    there.close()
    assert "KeyError" in capsys.readouterr().err  # what nobody expected is told in full
