"""What alembic runs for each command: over the open connection that `config.attributes` holds, and over no other; or,
where only a `dialect` is given there, as a script that is written and not run.

The caller owns the transaction. `render_as_batch`: SQLite changes a table by copying it.
"""

from __future__ import annotations

from alembic import context

from proxy.store.schema import metadata

given = context.config.attributes
if "dialect" in given:
    context.configure(dialect_name=given["dialect"], as_sql=True, literal_binds=True, transactional_ddl=False)
else:
    context.configure(connection=given["connection"], target_metadata=metadata, render_as_batch=True, compare_type=True)
context.run_migrations()
