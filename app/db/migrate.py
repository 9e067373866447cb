"""Bringing a database to the schema of this release."""

from __future__ import annotations

from importlib.resources import as_file, files

from sqlalchemy import Engine, inspect, text
from sqlalchemy.orm import Session

HEAD = "0002"


def current(session: Session) -> str | None:
    """The revision the database is at; None when it was never migrated."""
    if not inspect(session.connection()).has_table("alembic_version"):
        return None
    revision: str | None = session.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Migrate up to `revision` in one transaction; does nothing when already there.

    Processes that start together do this one after the other.
    """
    with Session(engine) as session:
        if revision == "head" and current(session) == HEAD:
            return
    _run(engine, "upgrade", revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Migrate down to `revision`; `base` leaves nothing."""
    _run(engine, "downgrade", revision)


def _run(engine: Engine, command: str, revision: str) -> None:
    from alembic import command as commands
    from alembic.config import Config

    with as_file(files("migrations")) as directory, engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(directory).replace("%", "%%"))
        config.attributes["connection"] = connection
        getattr(commands, command)(config, revision)
