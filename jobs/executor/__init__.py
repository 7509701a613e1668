"""The code inside Spark's tasks: read the log, fold, decode, deliver. It imports neither PySpark nor the driver."""
