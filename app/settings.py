"""Settings, read from the environment with the prefix `KC_`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class Settings(BaseSettings):
    """Everything a process of the control plane can be told; durations are seconds, sizes bytes.

    Attributes:
        home: data directory of the embedded default: `kc.db` and `artifacts/`.
        database_url: SQLAlchemy URL; empty means SQLite in `home`.
        broker_url: Celery broker; empty means the embedded polling worker.
        host: address to bind; loopback unless said otherwise.
        port: port of API and status page.
        allowed_hosts: further names the Host header may carry, comma-separated in the environment.
        max_body_bytes: larger request bodies are answered 413.
        tick_seconds: pause between two scheduler ticks.
        health_seconds: pause between two looks at whether known-good builds answer.
    """

    model_config = SettingsConfigDict(env_prefix="KC_", frozen=True, extra="ignore")

    home: Path = Path(".kc")
    database_url: str = ""
    broker_url: str = ""
    host: str = "127.0.0.1"
    port: int = Field(default=8321, ge=0, le=65535)
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    max_body_bytes: int = Field(default=2 * 2**20, ge=1)
    tick_seconds: float = Field(default=1.0, gt=0)
    health_seconds: float = Field(default=5.0, gt=0)

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(host.strip() for host in value.split(",") if host.strip())
        return value

    @property
    def artifacts(self) -> Path:
        """Directory of everything measured: records, converted checkpoints, suites."""
        return self.home / "artifacts"

    @property
    def url(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{(self.home / 'kc.db').absolute()}"
