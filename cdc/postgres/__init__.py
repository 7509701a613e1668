"""What capture asks PostgreSQL: connections, replication stream, slot, catalogue, preflight. Callers hold the
connection, and see psycopg's errors."""
