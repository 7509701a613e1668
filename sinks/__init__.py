"""Sinks: where changes go. One module per destination; nothing of the source, Kafka or Spark in it.

``sink.Sink`` is the contract and ``tests/contract/test_sink_contract.py`` its proof. A new sink is one module, one line in
``registry.py`` and one line in the contract suite.
"""
