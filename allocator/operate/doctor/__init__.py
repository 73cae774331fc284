"""The doctor: examines a cluster and a group, and returns findings with their remedies.

`examine_clusters` connects and polls, `observe` polls once, `diagnose` compares two polls. Only `apply_fixes` writes.
"""

from allocator.operate.doctor.doctor import apply_fixes, diagnose, examine_clusters
from allocator.operate.doctor.finding import Finding, Severity
from allocator.operate.doctor.observation import Observation, observe
