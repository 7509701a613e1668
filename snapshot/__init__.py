"""Copies of tables, the first one and later ones, through the stream's encoder and publisher. To a sink, a copied row
looks like one of the stream."""
