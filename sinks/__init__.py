"""Sinks: where changes go. One package per destination; nothing of the source, Kafka or Spark in it.

``contract.Sink`` is the contract and ``tests/contract/test_sink_*.py`` its proof. A new sink is one module or package,
one line in ``registry.py`` and one line in the contract suite.
"""
