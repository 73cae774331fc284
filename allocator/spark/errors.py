"""What can go wrong between Spark and a topic."""

from __future__ import annotations

from allocator.errors import AllocatorError

__all__ = [
    "ArchiveFull",
    "CheckpointMismatch",
    "DataLoss",
    "GroupInUse",
    "JavaMissing",
    "NothingRead",
    "SchemaMismatch",
    "WriteFailed",
]


class DataLoss(AllocatorError):
    """Offsets that were to be read do not exist (any more) and `fail_on_data_loss` is true."""


class NothingRead(AllocatorError):
    """A task got no record within `timeout_s`; Spark tries it again."""

    retriable = True


class CheckpointMismatch(AllocatorError):
    """A stream's checkpoint speaks of other topics than its options do."""


class GroupInUse(AllocatorError):
    """Offsets are to be committed to a group that has live members, which would be moved by that."""


class SchemaMismatch(AllocatorError, ValueError):
    """A column that does not exist, or of another type."""


class WriteFailed(AllocatorError):
    """Records were not acknowledged."""


class ArchiveFull(AllocatorError):
    """The disk of an archive, or the one on which Spark sorts, has no space left."""


class JavaMissing(AllocatorError):
    """Spark needs a Java that is not there."""
