"""What alembic runs for each command: over the open connection that `config.attributes` holds, and over no other.

The caller owns the transaction. `render_as_batch`: SQLite changes a table by copying it.
"""

from __future__ import annotations

from alembic import context

from proxy.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    compare_type=True,
)
context.run_migrations()
