"""The tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _conversations()
    _content()
    _access()
    _usage()


def _conversations() -> None:
    op.create_table(
        "conversation",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("scope", sa.LargeBinary(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", "id"),
    )
    op.create_index(
        "conversation_label", "conversation", ["tenant", "scope", "label", "created_at", "id"], unique=False
    )
    op.create_index("conversation_last_used", "conversation", ["tenant", "last_used"], unique=False)
    op.create_table(
        "reply",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("scope", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("anchor", sa.LargeBinary(), nullable=True),
        sa.Column("last_used", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", "digest"),
    )
    op.create_index("reply_last_used", "reply", ["tenant", "last_used"], unique=False)


def _content() -> None:
    op.create_table(
        "compaction",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("scope", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", "digest", "id"),
    )
    op.create_index("compaction_last_used", "compaction", ["tenant", "last_used"], unique=False)
    op.create_table(
        "hidden",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("scope", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("reply", sa.LargeBinary(), nullable=True),
        sa.Column("label", sa.Text(), nullable=True),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", "digest", "agent", "id"),
    )
    op.create_index("hidden_last_used", "hidden", ["tenant", "last_used"], unique=False)
    op.create_index("hidden_reply", "hidden", ["tenant", "scope", "reply"], unique=False)
    op.create_table(
        "result",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("scope", sa.LargeBinary(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("conversation", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("last_used", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "scope", "reference"),
    )
    op.create_index("result_last_used", "result", ["tenant", "last_used"], unique=False)


def _access() -> None:
    op.create_table(
        "account",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("end_user", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", "end_user"),
    )
    op.create_table(
        "calibration",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("upstream", "model"),
    )
    op.create_table(
        "client_key",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.Column("models", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("client_key_digest", "client_key", ["digest"], unique=True)
    op.create_table(
        "lease",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_table(
        "secret",
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("purpose"),
    )


def _usage() -> None:
    op.create_table(
        "usage",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("end_user", sa.Text(), nullable=True),
        sa.Column("conversation", sa.Text(), nullable=True),
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("asked_model", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("http_status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("finish", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("first_token", sa.Double(), nullable=True),
        sa.Column("duration", sa.Double(), nullable=True),
        sa.Column("input", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.BigInteger(), nullable=False),
        sa.Column("cached", sa.BigInteger(), nullable=False),
        sa.Column("cache_write", sa.BigInteger(), nullable=False),
        sa.Column("reasoning", sa.BigInteger(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=True),
        sa.Column("price_source", sa.Text(), nullable=True),
        sa.Column("price_version", sa.Text(), nullable=True),
        sa.Column("unpriced", sa.Boolean(), nullable=False),
        sa.Column("projected", sa.BigInteger(), nullable=True),
        sa.Column("window", sa.BigInteger(), nullable=True),
        sa.Column("compaction", sa.Text(), nullable=False),
        sa.Column("compaction_id", sa.Text(), nullable=True),
        sa.Column("notes_by", sa.Text(), nullable=True),
        sa.Column("paused", sa.Text(), nullable=True),
        sa.Column("repaired", sa.Integer(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("policy_hash", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", "tenant"),
    )
    op.create_index(
        "usage_open",
        "usage",
        ["opened_at"],
        unique=False,
        sqlite_where=sa.text("status = 'open'"),
        postgresql_where=sa.text("status = 'open'"),
    )
    op.create_index("usage_opened_at", "usage", ["opened_at"], unique=False)
    op.create_index("usage_tenant_opened_at", "usage", ["tenant", "opened_at"], unique=False)
