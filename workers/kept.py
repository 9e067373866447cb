"""Kernels kept between evaluations: the next shard of the same pair need not load them again."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from contracts.builds import BuildSpec
from workers.kernels.protocol import Kernel
from workers.opening import open_kernel

Opener = Callable[[BuildSpec, Path, str], AbstractContextManager[Kernel]]
Key = tuple[str, str, str]


@contextmanager
def fresh(build: BuildSpec, checkpoint: Path, _digest: str) -> Iterator[Kernel]:
    """Load a kernel for the block, and close it after."""
    kernel = open_kernel(build, checkpoint)
    try:
        yield kernel
    finally:
        kernel.close()
        del kernel
        gc.collect()


class KeptKernels:
    """Opens kernels and keeps the last two, by build and checkpoint digest.

    Two, because an evaluation needs a pair; a third closes the one used longest ago before it is
    loaded, so that memory never holds more. A kernel that was in use when something was raised is
    closed: what state it is in nobody knows. One whose process has ended since is loaded again.
    """

    def __init__(self, most: int = 2) -> None:
        self._most = most
        self._kept: OrderedDict[Key, Kernel] = OrderedDict()

    @contextmanager
    def __call__(self, build: BuildSpec, checkpoint: Path, digest: str) -> Iterator[Kernel]:
        """The kernel for the block; `digest` is of the checkpoint's present content."""
        key = (build.digest, str(checkpoint), digest)
        if key in self._kept and not getattr(self._kept[key], "alive", True):
            self._close(key)
        if key not in self._kept:
            while len(self._kept) >= self._most:
                self._close(next(iter(self._kept)))
            self._kept[key] = open_kernel(build, checkpoint)
        self._kept.move_to_end(key)
        try:
            yield self._kept[key]
        except BaseException:
            self._close(key)
            raise

    def _close(self, key: Key) -> None:
        kernel = self._kept.pop(key, None)
        if kernel is not None:
            kernel.close()
            del kernel
            gc.collect()
