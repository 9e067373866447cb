"""Messages arrive whole with their descriptors, arrays without a copy, and nonsense is refused."""

import os
import socket
import struct
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.kernels.wire import BadMessage, Buffer, Closed, Connection, Layout

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture
def ends():
    pair = [Connection(sock) for sock in socket.socketpair()]
    yield pair
    for one in pair:
        one.close()


@settings(max_examples=30)
@given(st.dictionaries(st.text(), JSON))
def test_messages_arrive_as_sent(message):
    here, there = map(Connection, socket.socketpair())
    here.send(message)
    assert there.receive() == (message, [])
    here.close()
    there.close()


def test_a_message_larger_than_the_socket_holds(ends):
    message = {"ids": list(range(300_000))}
    sender = threading.Thread(target=ends[0].send, args=(message,))
    sender.start()
    assert ends[1].receive() == (message, [])
    sender.join()


def test_a_buffer_is_the_same_memory_on_both_sides(ends):
    buffer, fd = Buffer.create(4096)
    ends[0].send({"n": 1}, [fd])
    os.close(fd)
    message, fds = ends[1].receive()
    other = Buffer.attach(fds[0])
    layout = Layout("float32", (2, 3), 64)
    buffer.store(torch.arange(6.0).view(2, 3), layout)
    seen = layout.torch(other.map)
    assert message == {"n": 1}
    assert seen.tolist() == [[0, 1, 2], [3, 4, 5]]
    seen[0, 0] = 9.0
    assert layout.numpy(buffer.map)[0, 0] == 9.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_tensors_of_every_dtype_bit_for_bit(dtype):
    tensor = torch.randn(5, 7, generator=torch.manual_seed(0)).to(dtype)
    tensor[0, 0], tensor[1, 1] = float("nan"), float("-inf")
    layout = Layout.of(tensor, 128)
    buffer, fd = Buffer.create(layout.end)
    os.close(fd)
    buffer.store(tensor, layout)
    seen = Layout.read(layout.message()).torch(buffer.map)
    assert seen.dtype == dtype
    assert torch.equal(seen.view(torch.uint8), tensor.view(torch.uint8))


def test_numpy_arrays_and_views_that_are_not_contiguous():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    layout = Layout.of(array)
    buffer, fd = Buffer.create(layout.end)
    os.close(fd)
    buffer.store(array, layout)
    assert layout.torch(buffer.map).tolist() == array.tolist()
    buffer.store(torch.from_numpy(array), layout)
    assert layout.numpy(buffer.map).tolist() == array.tolist()


def test_an_array_of_nothing():
    layout = Layout.of(torch.empty(0, 8))
    buffer, fd = Buffer.create(0)
    os.close(fd)
    buffer.store(torch.empty(0, 8), layout)
    assert layout.torch(buffer.map).shape == (0, 8)


def test_an_array_outlives_its_buffer():
    layout = Layout("float32", (4,))
    buffer, fd = Buffer.create(layout.end)
    os.close(fd)
    seen = layout.torch(buffer.map)
    seen.fill_(3.0)
    del buffer
    assert seen.tolist() == [3.0] * 4


@pytest.mark.parametrize(
    "message", [None, [], ["float32", [2]], ["int8", [2], 0], ["float32", [-1], 0], ["float32", ["x"], 0]]
)
def test_what_is_no_array_is_refused(message):
    with pytest.raises(BadMessage):
        Layout.read(message)


def test_an_array_beyond_its_buffer_is_refused():
    buffer, fd = Buffer.create(4096)
    os.close(fd)
    with pytest.raises(BadMessage, match="beyond"):
        Layout("float32", (2000,)).torch(buffer.map)


def test_an_element_type_no_kernel_gives_is_refused():
    with pytest.raises(BadMessage, match="int64"):
        Layout.of(torch.arange(3))


def test_the_other_side_ends(ends):
    ends[0].close()
    with pytest.raises(Closed):
        ends[1].receive()
    with pytest.raises(Closed):
        ends[1].send({"to": "nobody"})


@pytest.mark.parametrize("sent", [struct.pack("!IB", 9, 0) + b"not json!", struct.pack("!IB", 2, 0) + b"[]"])
def test_what_is_no_message_is_refused(sent):
    here, there = socket.socketpair()
    here.sendall(sent)
    with here, pytest.raises(BadMessage):
        Connection(there).receive()
    there.close()


def test_a_length_nobody_means_is_refused_before_it_is_read(ends):
    here, there = socket.socketpair()
    here.sendall(struct.pack("!IB", 2**32 - 1, 0))
    with here, there, pytest.raises(BadMessage, match="4294967295 bytes"):
        Connection(there).receive()
