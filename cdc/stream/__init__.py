"""What capture does beside reading the WAL: shapes, watched tables, large values, requests to publish rows again."""
