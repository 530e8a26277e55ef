"""The database: tables, sessions, migrations, errors."""
