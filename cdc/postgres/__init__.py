"""The only code of capture that knows psycopg: replication stream, slot, catalogue, preflight."""
