"""Alembic's environment: run the files of migrations/ in the transaction that `migrate` opened."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
