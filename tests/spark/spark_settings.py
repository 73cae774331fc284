"""Settings that make a Spark session cheap for few records and many queries."""

from __future__ import annotations

__all__ = ["CHEAP", "JVM", "LOCAL"]

# the code cache of the first compiler alone is so small that Java sweeps it all the time
JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:ReservedCodeCacheSize=128m "
    # to verify the classes of these jars takes a tenth of the CPU
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# generated Java code for each query, and new plans between its stages, cost more CPU than they save
CHEAP = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
# a driver on this machine
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": JVM,
    # otherwise each call of pyspark's API also sends its line to the JVM, for error messages
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    # how Spark describes each query's plan for its web page, which is off
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.enabled": "false",
}
# a driver on this machine, for executors of a cluster
CLUSTER = {**LOCAL, **CHEAP, "spark.executor.extraJavaOptions": JVM, "spark.executor.memory": "512m"}
