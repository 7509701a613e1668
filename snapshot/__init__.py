"""Copies of tables, the first one and later ones, through the stream's encoder and publisher.

A sink can't tell a copied row from one of the stream.
"""
