"""Runs revisions on the connection app.db.migrate hands over, in its transaction."""

from alembic import context

from app.db.models import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    compare_type=True,
    render_as_batch=connection.dialect.name == "sqlite",
)
if connection.dialect.name == "postgresql":
    # Waiting for a lock blocks everyone queued behind: fail and try again instead.
    connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
    connection.exec_driver_sql("SET LOCAL statement_timeout = '15min'")
context.run_migrations()
