"""Several processes on one database: who is alive, whose a lease and an open row are, and that keys have changed.

On PostgreSQL the usage rows are kept by month, so that retention drops whole months. The months themselves are made
while the gateway runs (`postgres_months`); what falls into none is taken by `usage_default`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "instance",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "revision",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.add_column("lease", sa.Column("instance", sa.Text(), nullable=True))
    op.add_column("usage", sa.Column("instance", sa.Text(), nullable=True))
    if op.get_context().dialect.name == "postgresql":
        _by_month()


def _by_month() -> None:
    op.execute("ALTER TABLE usage RENAME TO usage_whole")
    for index in ("usage_open", "usage_opened_at", "usage_tenant_opened_at"):
        op.execute(f"DROP INDEX {index}")
    op.execute(
        "CREATE TABLE usage (LIKE usage_whole, CONSTRAINT usage_by_month PRIMARY KEY (tenant, id, opened_at))"
        " PARTITION BY RANGE (opened_at)"
    )
    op.execute("CREATE INDEX usage_open ON usage (opened_at) WHERE status = 'open'")
    op.execute("CREATE INDEX usage_opened_at ON usage (opened_at)")
    op.execute("CREATE INDEX usage_tenant_opened_at ON usage (tenant, opened_at)")
    op.execute("CREATE TABLE usage_default PARTITION OF usage DEFAULT")
    op.execute("INSERT INTO usage SELECT * FROM usage_whole")
    op.execute("DROP TABLE usage_whole")
