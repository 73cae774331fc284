"""The doctor: inspects a cluster and a group, and reports findings with their remedies.

In: a connected `KafkaClient`, a `ZooKeeper` session, the name of a group. Out: `Finding`s.
May touch: the znodes of `apply_fixes`. Everything else only reads brokers and znodes.
"""

from allocator.operate.doctor.doctor import apply_fixes, diagnose, examine_clusters
from allocator.operate.doctor.finding import Finding, Severity
from allocator.operate.doctor.observation import Observation, observe

__all__ = [
    "Finding",
    "Observation",
    "Severity",
    "apply_fixes",
    "diagnose",
    "examine_clusters",
    "observe",
]
