"""Opening the database: the way in for every process that works with it."""

from __future__ import annotations

from app.db import migrate
from app.db.session import Database
from app.settings import Settings

__all__ = ["Database", "Settings", "open_database"]


def open_database(settings: Settings | None = None) -> Database:
    """The database the settings (by default the environment's) name.

    The embedded default is created and migrated here; a database of one's own is migrated by
    whoever runs it (:func:`app.db.migrate.upgrade`).
    """
    settings = settings or Settings()
    embedded = not settings.database_url
    if embedded:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.url)
    if embedded:
        migrate.upgrade(database.engine)
    return database
