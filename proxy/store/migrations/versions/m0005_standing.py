"""What operators set for keys while the server runs, and when each was last used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "standing",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("quota", sa.LargeBinary(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
