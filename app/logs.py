"""Logging: one JSON object a line on standard error, whoever logs."""

from __future__ import annotations

import logging
import sys

import structlog


def _plain(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Without uvicorn's second copy of the message, made for terminals."""
    event.pop("color_message", None)
    return event


def configure(level: int = logging.INFO) -> None:
    """Send structlog's and the standard library's records through one JSON formatter."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _plain,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.access", "uvicorn.error", "alembic"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # Their lines say that nothing was to be migrated, and every request that was sent.
    for name in ("alembic", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
