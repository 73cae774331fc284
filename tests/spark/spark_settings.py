"""Settings that make a Spark session cheap for few records and many queries."""

from __future__ import annotations

__all__ = ["CHEAP", "JVM"]

# the code cache of the first compiler alone is so small that Java sweeps it all the time
JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -XX:ReservedCodeCacheSize=128m "
    # to verify the classes of these jars takes a tenth of the CPU
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# to generate Java code for each query, and to plan each anew between its stages, costs more CPU than it saves
CHEAP = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
