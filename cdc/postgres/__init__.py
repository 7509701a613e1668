"""The only code of capture that uses psycopg: replication stream, slot, catalogue, preflight."""
