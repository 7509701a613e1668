"""What capture does beside reading the WAL: shapes from the catalogue, watched tables, large values, requests to
publish rows again."""
