"""Sinks: the destinations of changes, one package each. Nothing of the source, Kafka or Spark is in them.

``contract.Sink`` is the contract and ``tests/contract/test_sink_*.py`` its proof. A new sink is one module or package,
one line in ``registry.py`` and one line in the contract suite.
"""
