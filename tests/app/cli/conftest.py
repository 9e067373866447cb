"""A control plane that really listens, without scheduler and worker."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from app.main import create_app
from app.settings import Settings


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[str]:
    """URL of a control plane with an empty database."""
    app = create_app(Settings(home=tmp_path / "home"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        assert server.listens.wait(30)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)
