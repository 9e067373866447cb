"""Alembic environment and revisions; run by app.db.migrate."""
