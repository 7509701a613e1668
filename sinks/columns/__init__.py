"""Values of events as typed columns, and the shape of the table that they belong to. Pure."""
