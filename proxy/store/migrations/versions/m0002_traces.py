"""Which skills a conversation had."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "trace",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("scope", sa.LargeBinary(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", "conversation", "digest", "kind", "subject"),
    )
    op.create_index("trace_last_used", "trace", ["tenant", "last_used"], unique=False)
