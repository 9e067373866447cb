"""How far a job is"""

import sqlalchemy as sa
from alembic import op


revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("progress", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("doing", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "doing")
    op.drop_column("jobs", "progress")
