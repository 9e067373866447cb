"""Opening the database: the way in for every process that works with it."""

from __future__ import annotations

from app.db.session import Database
from app.settings import Settings

__all__ = ["Database", "Settings", "open_database"]


def open_database(settings: Settings | None = None) -> Database:
    """The database the settings (by default the environment's) name; nothing is migrated or created.

    Call :func:`app.db.migrate.upgrade` first where the process owns the embedded default.
    """
    settings = settings or Settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    return Database(settings.url)
