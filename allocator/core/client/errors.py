"""Error codes of brokers with the reactions to them, and the errors of connections and requests.

`ErrorCode` has the codes of https://kafka.apache.org/protocol#protocol_error_codes. `COMMIT`, `OFFSET_FETCH` and
`FETCH` have other reactions for one kind of request, and `allocator.protocols.reactions` has those of group members.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final, TypeVar, Union

from allocator.core.errors import AllocatorError, BrokerError, CorruptRecordError, TopicAuthorizationFailed
from allocator.core.types import TopicPartition


class Reaction(enum.Enum):
    """The next step of the client after an error code."""

    DONE = "the same as success"
    RETRY = "retry after the back-off"
    REFRESH = "read the metadata, since the leader may have changed, and retry after the back-off"
    REFIND = "find the coordinator again, and retry after the back-off"
    FAIL = "raise; a retry does not help"

    CHECK_TOPIC = "retry while the cluster has the partition"
    DROP_METADATA = "retry at once without the metadata of the commit, which is too large"

    VALIDATE = "read the metadata, and compare the position with the new leader's log before the next fetch"
    RESET = "reset the position by auto_offset_reset, or raise OffsetOutOfRange if it is 'none'"
    RAISE = "raise in the consumer once, and retry now and then: an operator may remove the cause"


RETRY, REFRESH, REFIND, FAIL = Reaction.RETRY, Reaction.REFRESH, Reaction.REFIND, Reaction.FAIL


class ErrorCode(enum.IntEnum):
    """An error code under Kafka's name, with the usual reaction and what it means to the user."""

    reaction: Reaction
    meaning: str

    def __new__(cls, code: int, reaction: Reaction = FAIL, meaning: str = "") -> ErrorCode:
        self = int.__new__(cls, code)
        self._value_ = code
        self.reaction = reaction
        self.meaning = meaning
        return self

    def __str__(self) -> str:
        return str(int(self))

    UNKNOWN_SERVER_ERROR = -1, FAIL, "the broker's log has the cause"
    NONE = 0, Reaction.DONE
    OFFSET_OUT_OF_RANGE = 1, FAIL, "the log does not have this offset"
    # Java's clients repeat such a batch. Old brokers also return the code for a record that they never accept
    CORRUPT_MESSAGE = 2, FAIL, "damaged in transit, or a record that the topic never accepts, such as one without a key"
    UNKNOWN_TOPIC_OR_PARTITION = 3, REFRESH, "the broker does not have it, or this user may not see it"
    INVALID_FETCH_SIZE = 4, FAIL, "the broker cannot serve a fetch of this size"
    LEADER_NOT_AVAILABLE = 5, REFRESH, "its replicas elect a leader"
    NOT_LEADER_OR_FOLLOWER = 6, REFRESH, "another broker leads the partition"
    REQUEST_TIMED_OUT = 7, RETRY, "the broker could not do it in time"
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9, REFRESH
    MESSAGE_TOO_LARGE = 10, FAIL, "larger than max.message.bytes of the topic"
    OFFSET_METADATA_TOO_LARGE = 12, FAIL, "larger than offset.metadata.max.bytes of the broker"
    NETWORK_EXCEPTION = 13, REFRESH, "the broker lost its connection to another broker"
    COORDINATOR_LOAD_IN_PROGRESS = 14, RETRY, "the coordinator reads its log"
    COORDINATOR_NOT_AVAILABLE = 15, REFIND, "no broker coordinates this group or transaction now"
    NOT_COORDINATOR = 16, REFIND, "another broker coordinates this group or transaction"
    INVALID_TOPIC_EXCEPTION = 17, FAIL, "not a valid topic name, or one of Kafka's internal topics"
    RECORD_LIST_TOO_LARGE = 18, FAIL, "larger than segment.bytes of the topic"
    NOT_ENOUGH_REPLICAS = 19, RETRY, "fewer replicas are in sync than min.insync.replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, RETRY, "written, but to fewer replicas than min.insync.replicas"
    ILLEGAL_GENERATION = 22, FAIL, "that generation of the group is over"
    INCONSISTENT_GROUP_PROTOCOL = 23, FAIL, "the members have no assignor or no group protocol in common"
    INVALID_GROUP_ID = 24, FAIL, "not a valid group name"
    UNKNOWN_MEMBER_ID = 25, FAIL, "the group does not know this member, or has removed it"
    INVALID_SESSION_TIMEOUT = 26, FAIL, "outside group.min.session.timeout.ms and group.max.session.timeout.ms"
    REBALANCE_IN_PROGRESS = 27, FAIL, "the group rebalances"
    INVALID_COMMIT_OFFSET_SIZE = 28, FAIL, "the commit is larger than the offsets topic allows"
    TOPIC_AUTHORIZATION_FAILED = 29, FAIL, "grant this user the right to use the topic"
    GROUP_AUTHORIZATION_FAILED = 30, FAIL, "grant this user the right to use the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, FAIL, "grant this user the right on the cluster"
    INVALID_TIMESTAMP = 32, FAIL, "a record's timestamp is outside what the topic allows"
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35, FAIL, "the broker lacks this request or this version of it"
    TOPIC_ALREADY_EXISTS = 36, FAIL, "there is a topic of this name"
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38, FAIL, "the cluster has fewer brokers"
    NOT_CONTROLLER = 41, RETRY, "another broker is the controller"
    INVALID_REQUEST = 42, FAIL, "the broker's log has the cause"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, FAIL, "the topic has an older record format; raise its message.format.version"
    POLICY_VIOLATION = 44, FAIL, "a policy of the brokers forbids it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, FAIL, "an earlier batch of this producer is missing"
    DUPLICATE_SEQUENCE_NUMBER = 46, FAIL, "the broker has this batch already"
    INVALID_PRODUCER_EPOCH = 47, FAIL, "another producer has taken over this id"
    INVALID_TXN_STATE = 48, FAIL, "the transaction does not allow this step"
    INVALID_PRODUCER_ID_MAPPING = 49, FAIL, "the broker has forgotten this id (transactional.id.expiration.ms)"
    INVALID_TRANSACTION_TIMEOUT = 50, FAIL, "longer than transaction.max.timeout.ms of the broker"
    CONCURRENT_TRANSACTIONS = 51, RETRY, "the previous transaction of this id still ends"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, FAIL, "grant this user the right to use the transactional id"
    OPERATION_NOT_ATTEMPTED = 55, FAIL, "another part of the request was refused"
    KAFKA_STORAGE_ERROR = 56, REFRESH, "the broker's disk fails"
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59, FAIL, "the broker knows nothing of this producer any more"
    REASSIGNMENT_IN_PROGRESS = 60, FAIL, "the partition moves to other brokers"
    NON_EMPTY_GROUP = 68, FAIL, "the group has members"
    GROUP_ID_NOT_FOUND = 69, FAIL, "there is no group of this name"
    FETCH_SESSION_ID_NOT_FOUND = 70, RETRY
    INVALID_FETCH_SESSION_EPOCH = 71, RETRY
    LISTENER_NOT_FOUND = 72, REFRESH, "the leader has no listener of this name"
    FENCED_LEADER_EPOCH = 74, REFRESH, "the partition has a newer leader"
    UNKNOWN_LEADER_EPOCH = 75, REFRESH, "the broker does not know the newest leader yet"
    UNSUPPORTED_COMPRESSION_TYPE = 76, FAIL, "the records have a codec that this version of the request lacks"
    OFFSET_NOT_AVAILABLE = 78, RETRY, "a new leader does not know its high watermark yet"
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = (
        81,
        FAIL,
        "full: group.max.size or group.consumer.max.size of the broker limits its members",
    )
    FENCED_INSTANCE_ID = 82, FAIL, "another process has this instance id"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, FAIL, "members of the group read the topic"
    INVALID_RECORD = 87, FAIL, "the topic refuses this record, for example one without a key if it is compacted"
    UNSTABLE_OFFSET_COMMIT = 88, RETRY, "an open transaction may still commit an offset"
    THROTTLING_QUOTA_EXCEEDED = 89, RETRY
    PRODUCER_FENCED = 90, FAIL, "another producer has taken over this transactional id"
    UNKNOWN_TOPIC_ID = 100, REFRESH, "the broker has no topic of this id"
    INCONSISTENT_TOPIC_ID = 103, REFRESH, "the topic was deleted and created again"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, RETRY
    FENCED_MEMBER_EPOCH = 110, FAIL, "the group has removed this member"
    UNRELEASED_INSTANCE_ID = 111, FAIL, "another member has this instance id and has not left"
    UNSUPPORTED_ASSIGNOR = 112, FAIL, "the broker has no such assignor"
    STALE_MEMBER_EPOCH = 113, FAIL, "the member has a newer epoch"
    INVALID_REGULAR_EXPRESSION = 128, FAIL, "the broker cannot read the pattern"


# int -> member: faster than `ErrorCode(code)`, which raises for unknown codes
BY_CODE: Final = {int(code): code for code in ErrorCode}

T = TypeVar("T")

COMMIT: Final[Mapping[int, Reaction]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: RETRY,  # 0.8.1, if ZooKeeper did not accept the write
    # the coordinator does not know the partition yet, or the topic was deleted
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.CHECK_TOPIC,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: Reaction.DROP_METADATA,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: Reaction.DROP_METADATA,
}

OFFSET_FETCH: Final[Mapping[int, Reaction]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Reaction.CHECK_TOPIC,
    # the next heartbeat tells the member that it was removed, that its group was deleted, or its new epoch
    ErrorCode.UNKNOWN_MEMBER_ID: RETRY,
    ErrorCode.GROUP_ID_NOT_FOUND: RETRY,
    ErrorCode.STALE_MEMBER_EPOCH: RETRY,
}

FETCH: Final[Mapping[int, Reaction]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: RETRY,  # occurs while a broker starts or stops
    ErrorCode.OFFSET_OUT_OF_RANGE: Reaction.RESET,
    ErrorCode.BROKER_NOT_AVAILABLE: REFRESH,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Reaction.RAISE,
    ErrorCode.FENCED_LEADER_EPOCH: Reaction.VALIDATE,
}


def reaction_to(code: int, special: Mapping[int, T]) -> Union[Reaction, T]:
    """Returns the reaction to `code`: the one in `special`, else the usual one, else FAIL."""
    found = special.get(code)
    if found is not None:
        return found
    known = BY_CODE.get(code)
    return FAIL if known is None else known.reaction


def reaction_to_fetch(code: int) -> Reaction:
    """Returns the reaction to a code in a Fetch response. A code of a newer Kafka counts as UNKNOWN_SERVER_ERROR, as in
    Kafka's own client: it is repeated.
    """
    return reaction_to(code if code in BY_CODE else ErrorCode.UNKNOWN_SERVER_ERROR, FETCH)


def for_code(code: int, what: str) -> BrokerError:
    """Returns the error for `code` in a response about `what`, such as "orders:3"."""
    failed = refused(code)
    return BrokerError(f"{what}: {failed}", code=code, retriable=failed.retriable)


def error_of(code: int, tp: TopicPartition, offset: int) -> AllocatorError:
    """Returns the error that the consumer raises for `code` at one offset."""
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicAuthorizationFailed(tp.topic)
    if code == ErrorCode.CORRUPT_MESSAGE:
        return CorruptRecordError(tp.topic, tp.partition, offset, "the broker finds its log corrupt here")
    return for_code(code, f"{tp.topic}:{tp.partition} at offset {offset}")


# -- connections and requests ------------------------------------------------------------------------------------------


class RequestFailed(Exception):
    """Why a connection or a request failed. `KafkaClient` converts it to a `BrokerError` that names the broker."""

    retriable = True
    code: int | None = None


class ConnectionFailed(RequestFailed):
    """The connection could not be opened, or it closed."""


class InBackoff(RequestFailed):
    """The last attempt to connect failed, and the back-off is not over."""


class NoTimeLeft(RequestFailed):
    """The deadline passed before the request was sent."""


class NoResponse(RequestFailed):
    """The broker did not respond in time."""


class WrongResponse(RequestFailed):
    """The response has the correlation id of another request."""


class Undecodable(RequestFailed):
    """A response cannot be decoded. It costs its connection; a new one may be sound."""


class NotKafka(RequestFailed):
    """The first bytes from the address are not of Kafka's protocol."""

    retriable = False


class Unencodable(RequestFailed):
    """A request cannot be encoded."""

    retriable = False


class Unsupported(RequestFailed):
    """The broker does not support the request, or no version of it that this client knows."""

    retriable = False
    code = ErrorCode.UNSUPPORTED_VERSION.value


def refused(code: int, why: str = "") -> RequestFailed:
    """Returns the error for a request that the broker refused with `code`. `why` replaces the meaning of the code."""
    known = BY_CODE.get(code)
    if known is not None:
        name = known.name
    else:  # kafka-python has the names of the codes that clients only report
        from kafka import errors

        other = errors.kafka_errors.get(code)
        name = f"error {code}, which this client does not know" if other is None else other.message
    meaning = f" ({known.meaning})" if known is not None and known.meaning else ""
    failed = RequestFailed(f"{name}: {why}" if why else f"{name}{meaning}")
    failed.code, failed.retriable = code, reaction_to(code, {}) not in (FAIL, Reaction.DONE)
    return failed


def broker_error(failed: RequestFailed, where: str) -> BrokerError:
    """Returns the error that `send` raises for `failed` at `where`, a broker."""
    return BrokerError(f"{where}: {failed}", code=failed.code, retriable=failed.retriable)


# (pattern of the cause, whether TLS is used (None: either), what to do) of a failed connection. The first match counts.
REMEDIES: Final = (
    ("no credentials for", None, "The client retries; the address of the broker is right."),
    ("CERTIFICATE_VERIFY_FAILED.*([Hh]ostname|IP address) mismatch", True, "Use a host name that the certificate has."),
    ("certificate has expired", True, "Renew the broker's certificate; if it is new, correct this machine's clock."),
    ("certificate is not yet valid", True, "Correct this machine's clock, or the broker's certificate."),
    ("certificate revoked", True, "Renew the broker's certificate, which ssl_crlfile lists as revoked."),
    ("CERTIFICATE_EXPIRED", True, "Renew the certificate of this client (ssl_certfile)."),
    ("CERTIFICATE_VERIFY_FAILED", True, "Set ssl_cafile to the authority that signed the broker's certificate."),
    ("CERTIFICATE|ALERT", True, "Check whether the broker needs a client certificate (ssl_certfile, ssl_keyfile)."),
    ("TLS|SSL", True, "Check that the port uses TLS; {protocol} needs it."),
    ("TLS", False, "This port needs TLS: correct security_protocol, {protocol} now, or the port."),
    ("Too many open files", None, "Raise the limit of open files (ulimit -n)."),
    ("'MetadataRequest'", None, "This is the port of a KRaft controller; use the address of a broker."),
    ("HTTP", None, "Correct the address: this is not a Kafka broker."),
    (
        "clos",
        True,
        "Check whether the broker needs a client certificate (ssl_certfile, ssl_keyfile), that this is its port for "
        "{protocol}, and that it is not just starting.",
    ),
    (
        "clos",
        False,
        "Check that this is a Kafka broker's port for {protocol} (security_protocol), and is not just starting.",
    ),
    (
        "respon[ds]|timed out after|decode",
        None,
        "Check that this is the address of a Kafka broker, and its port for {protocol} (security_protocol).",
    ),
    ("", None, "Check that it runs, and the address."),
)


def unreachable(causes: Mapping[str, str], protocol: str) -> str:
    """Returns each address with its cause, and what to do. `protocol` is the value of `security_protocol`."""
    remedies = dict.fromkeys(_remedy(cause, protocol.endswith("SSL")) for cause in causes.values())
    tried = ", ".join(f"{address} ({cause})" for address, cause in causes.items())
    return f"{tried}. {' '.join(remedies).format(protocol=protocol)}"


def _remedy(cause: str, tls: bool) -> str:
    return next(
        remedy for pattern, with_tls, remedy in REMEDIES if with_tls in (tls, None) and re.search(pattern, cause)
    )
