"""The migrations lead to exactly the tables the models describe, and back to nothing."""

import re
import threading

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from app.db import migrate
from app.db.models import Base
from app.db.session import Database


@pytest.fixture
def database(tmp_path):
    opened = Database(f"sqlite:///{tmp_path / 'kc.db'}")
    yield opened
    opened.dispose()


def test_models_and_migrations_agree(database):
    migrate.upgrade(database.engine)
    with database.engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def _named(database):
    """Every index by its definition, every constraint by its name."""
    with database.engine.begin() as connection:
        rows = connection.execute(text("SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL")).all()
    found = set()
    for kind, sql in rows:
        if "alembic_version" not in sql:
            found |= {sql.replace('"', "")} if kind == "index" else set(re.findall(r"CONSTRAINT (\w+)", sql))
    return found


def test_every_name_is_the_same_as_the_models_make(database, tmp_path):
    migrate.upgrade(database.engine)
    direct = Database(f"sqlite:///{tmp_path / 'direct.db'}")
    Base.metadata.create_all(direct.engine)
    assert _named(database) == _named(direct)
    direct.dispose()


def test_down_leaves_nothing(database):
    migrate.upgrade(database.engine)
    migrate.downgrade(database.engine, "base")
    with database.engine.begin() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    migrate.upgrade(database.engine)
    with database.reading() as session:
        assert migrate.current(session) == migrate.HEAD


def test_head_is_the_newest_revision():
    config = Config()
    config.set_main_option("script_location", "migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == migrate.HEAD


def test_never_migrated_has_no_revision(database):
    with database.reading() as session:
        assert migrate.current(session) is None


def test_processes_that_start_together_migrate_once(tmp_path):
    url = f"sqlite:///{tmp_path / 'kc.db'}"
    failures = []
    barrier = threading.Barrier(4)

    def start() -> None:
        opened = Database(url)
        try:
            barrier.wait()
            migrate.upgrade(opened.engine)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            failures.append(error)
        finally:
            opened.dispose()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
