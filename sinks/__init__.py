"""Sinks: where changes go. One package per destination; nothing of the source, Kafka or Spark in it.

``sink.Sink`` is the contract and ``tests/contract/test_sink_contract.py`` its proof. A new sink is one module or package, one line in
``registry.py`` and one line in the contract suite.
"""
