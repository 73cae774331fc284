"""Migrates from an old cluster to a new one: mirrors topics, copies offsets, cuts groups over.

In: an old cluster, a new one, their groups, a plan. Out: mirrored topics, a map from old offsets to new ones, copied
offsets, groups that read the new cluster. It writes the new cluster, the offsets of the groups in the plan, and the
files that the plan names. On the old cluster it writes only offsets, those of its own group, of a rollback or of a
copy; a mirror back also writes there that the other mirror has ended.
"""

from __future__ import annotations

from kafka import errors  # imports `kafka` first, see `protocol.load`

from allocator.migrate.carrying import carry_over
from allocator.migrate.cutover import Cutover
from allocator.migrate.lag import Lag
from allocator.migrate.mirror import Mirror
from allocator.migrate.mirror_settings import MirrorSettings
from allocator.migrate.offsets import CopyPlan, copy_offsets, restore_offsets, restoring
from allocator.migrate.storage import OffsetStore
