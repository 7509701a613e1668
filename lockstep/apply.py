"""Runs the jobs of some or all sinks, with the jars and the Java of the local package cache where none are configured."""

from cdc.model.errors import ConfigurationError
from jobs.config import SparkSettings
from jobs.run import run_sinks
from lockstep.config import Config


def apply_sinks(config: Config, *, sinks: tuple[str, ...], once: bool) -> int:
    """Apply the topics to these sinks, or to all; returns the exit code. Raises ConfigurationError for unknown names."""
    unknown = [name for name in sinks if name not in config.sinks]
    if unknown or not config.sinks:
        known = ", ".join(config.sinks) or "none"
        raise ConfigurationError(
            f"no such sink: {', '.join(unknown)}" if unknown else "the configuration has no sinks",
            hint=f"sinks of this configuration: {known}",
        )
    chosen = {name: config.sinks[name] for name in sinks or config.sinks}
    return run_sinks(
        pipeline=config.pipeline.name,
        kafka=config.kafka,
        tables=config.source.keyed_names,
        sinks=chosen,
        spark=spark_settings(config),
        once=once,
    )


def spark_settings(config: Config) -> SparkSettings:
    """The configured settings; jars and Java that aren't named come from the package cache and this machine."""
    spark = config.spark
    missing: dict[str, object] = {}
    # Imported when needed: an installation that names its jars and its Java does without the local servers' packages.
    if not spark.jars:
        from stack.jars import jar_set

        missing["jars"] = tuple(jar_set("spark"))
    if spark.java_home is None:
        from stack.java import java_home_for_spark

        missing["java_home"] = java_home_for_spark()
    return spark.model_copy(update=missing)
