"""Conversations that the gateway keeps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "owned",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("end_user", sa.Text(), nullable=True),
        sa.Column("metadata", sa.LargeBinary(), nullable=False),
        sa.Column("head", sa.Text(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("run_until", sa.Double(), nullable=True),
        sa.Column("stopping", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", "id"),
    )
    op.create_index("owned_created_at", "owned", ["tenant", "key", "created_at", "id"], unique=False)
    op.create_index("owned_last_used", "owned", ["tenant", "last_used"], unique=False)
    op.create_table(
        "owned_item",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("wire", sa.LargeBinary(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", "conversation", "id"),
    )
    op.create_table(
        "interjection",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("place", sa.BigInteger(), nullable=False),
        sa.Column("wire", sa.LargeBinary(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", "conversation", "run", "place"),
    )
