"""PostgreSQL: connections, threads, transactions, row-level security, partitions and field types."""
