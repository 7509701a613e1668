"""What capture does besides reading the WAL: shapes, watched tables, large values, repair requests."""
