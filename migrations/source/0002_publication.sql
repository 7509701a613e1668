-- What is captured. Truncate is published too: a truncate that is left out would be lost without a word.
-- Partitions come and go: their changes are sent as the table's.
create publication {publication} for table {tables} with (publish = 'insert, update, delete, truncate', publish_via_partition_root = true{generated});
