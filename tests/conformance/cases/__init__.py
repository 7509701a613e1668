"""The cases, by the sections of PostgreSQL's, Debezium's and others' suites that they take their facts from."""
