"""Launcher of the platform on a bare machine: environment, embedded PostgreSQL and Valkey, migrations, processes."""
