"""The servers on this machine, without Docker: PostgreSQL (source and warehouse), Kafka, OpenSearch and Valkey.

They start from packages: Valkey from a wheel, the others from jars pinned by coordinates and sha256. Every server
listens only on 127.0.0.1, on free ports, keeps its data below one directory and needs no root. `Stack` in `stack.stack`
is the entry; `stack.jars` fetches files, `stack.java` finds a Java. This package imports none of the others.
"""
