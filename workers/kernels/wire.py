"""Between an evaluation and a kernel in its own process: JSON for words, shared memory for tensors.

A message is a JSON object behind its length, with the file descriptors that belong to it. Tensors
lie in anonymous memory both processes map; nothing is pickled and nothing reaches a disk.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

_HEADER = struct.Struct("!IB")  # bytes of JSON, descriptors
_LARGEST, _MOST_FDS = 2**28, 4
_ALIGNED = 64
_ITEM = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

Message = dict[str, Any]


class Closed(Exception):
    """The other side has ended, in the middle of a message or between two."""


class BadMessage(Exception):
    """What came is not a message: too long, not JSON, or an array that cannot be."""


class Connection:
    """One end of a stream socket between two processes of one machine."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        """Of the socket, for selectors."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message. Raises Closed when the other side is gone."""
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > _LARGEST or len(fds) > _MOST_FDS:
            raise BadMessage(f"a message of {len(body)} bytes and {len(fds)} descriptors")
        try:
            header = _HEADER.pack(len(body), len(fds))
            sent = socket.send_fds(self._socket, [header], fds) if fds else 0
            self._socket.sendall(header[sent:] + body)
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self) -> tuple[Message, list[int]]:
        """The next message and its descriptors, which are the caller's to close.

        Raises Closed, BadMessage, and TimeoutError where the socket has a time limit.
        """
        fds: list[int] = []
        header = self._read(_HEADER.size, fds)
        length, expected = _HEADER.unpack(header)
        if length > _LARGEST or len(fds) != expected:
            raise BadMessage(f"a message of {length} bytes with {len(fds)} of {expected} descriptors")
        try:
            message = json.loads(self._read(length, fds))
        except ValueError as error:
            raise BadMessage(f"not JSON: {error}") from None
        if not isinstance(message, dict):
            raise BadMessage("not a JSON object")
        return message, fds

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _read(self, size: int, fds: list[int]) -> bytes:
        parts: list[bytes] = []
        while size:
            try:
                part, found, _flags, _address = socket.recv_fds(self._socket, min(size, 1 << 20), _MOST_FDS)
            except ConnectionResetError as error:
                raise Closed(str(error)) from None
            if not part:
                raise Closed("the other side has ended")
            fds.extend(found)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an array lies in a buffer.

    Attributes:
        dtype: float64, float32, bfloat16 or float16.
        shape: of the array.
        offset: bytes before it.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return prod(self.shape) * _ITEM[self.dtype]

    @property
    def end(self) -> int:
        """Where the next array may begin."""
        return -(-(self.offset + self.nbytes) // _ALIGNED) * _ALIGNED

    def message(self) -> list[Any]:
        """As JSON carries it."""
        return [self.dtype, list(self.shape), self.offset]

    @classmethod
    def read(cls, message: Any) -> Layout:
        """From JSON. Raises BadMessage."""
        try:
            dtype, shape, offset = message
            layout = cls(dtype, tuple(map(int, shape)), int(offset))
            if dtype not in _ITEM or layout.offset < 0 or min(layout.shape, default=0) < 0:
                raise ValueError
        except (TypeError, ValueError):
            raise BadMessage(f"not an array: {message!r}") from None
        return layout

    def torch(self, memory: Any) -> Any:
        """A torch tensor over the memory itself, which it keeps."""
        import torch

        dtype = getattr(torch, self.dtype)
        if not self.nbytes:
            return torch.empty(self.shape, dtype=dtype)
        self._check(memory)
        return torch.frombuffer(memory, dtype=dtype, count=prod(self.shape), offset=self.offset).view(
            self.shape
        )

    def numpy(self, memory: Any) -> Any:
        """A numpy array over the memory itself, which it keeps."""
        import numpy as np

        self._check(memory)
        return np.frombuffer(memory, self.dtype, prod(self.shape), self.offset).reshape(self.shape)

    def _check(self, memory: Any) -> None:
        if self.offset + self.nbytes > len(memory):
            raise BadMessage(f"an array of {self.nbytes} bytes beyond the {len(memory)} there are")

    @classmethod
    def of(cls, array: Any, offset: int = 0) -> Layout:
        """Of a torch tensor or a numpy array. Raises BadMessage for another element type."""
        dtype = str(array.dtype).removeprefix("torch.")
        if dtype not in _ITEM:
            raise BadMessage(f"an array of {dtype}; kernels give {', '.join(_ITEM)}")
        return cls(dtype, tuple(array.shape), offset)


class Buffer:
    """Memory two processes share; it lasts as long as something maps it or an array lies in it."""

    def __init__(self, fd: int, size: int) -> None:
        """Map `size` bytes of a descriptor, which stays the caller's."""
        self.size = size
        self.map = mmap.mmap(fd, size)

    @classmethod
    def create(cls, size: int) -> tuple[Buffer, int]:
        """A new one of at least `size` bytes, and the descriptor to send and then close."""
        size = max(size, mmap.PAGESIZE)
        fd = _anonymous()
        os.ftruncate(fd, size)
        return cls(fd, size), fd

    @classmethod
    def attach(cls, fd: int) -> Buffer:
        """The one behind a descriptor that was received, which is closed."""
        try:
            return cls(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    def store(self, array: Any, layout: Layout) -> None:
        """Copy a tensor or array, from whatever device it is on, to its place."""
        if layout.nbytes and type(array).__module__ == "numpy":
            layout.numpy(self.map)[...] = array
        elif layout.nbytes:
            layout.torch(self.map).copy_(array)


def _anonymous() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("kernel", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # where there is no memfd: a file without a name
        return os.dup(file.fileno())
