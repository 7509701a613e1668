"""What runs inside Spark's tasks: read the log, fold it, decode it, deliver it. It imports neither PySpark nor anything of the driver."""
