"""What the API answers: a class for each JSON object, from which the OpenAPI description is made.

The server answers with plain dictionaries; the tests compare them with these classes. Times are epoch seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional, Union

from msgspec import UNSET, Meta, Struct, UnsetType

from allocator.operate import ORDER_STATES
from allocator.viewer import ReadWindow

Count = Annotated[int, Meta(ge=0)]
MaybeCount = Optional[Count]
MaybeReal = Optional[float]
MaybeText = Optional[str]
State = Annotated[str, Meta(extra_json_schema={"enum": list(ORDER_STATES)})]


def described(text: str) -> Meta:
    """The description of a field."""
    return Meta(description=text)


LetterName = Annotated[str, Meta(pattern="^[0-9]{1,9}:[0-9]{1,18}$", description="PARTITION:OFFSET of the letter.")]


class Response(Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    pass


class WhyJson(Response):
    message: str
    retriable: bool


class ErrorJson(Response):
    error: WhyJson


class HealthJson(Response):
    ok: bool
    problems: list[str]


class LastRebalanceJson(Response):
    id: int
    began: float
    ended: MaybeReal
    took_s: MaybeReal
    moved: Count


class FiguresJson(Response):
    group: str
    protocol: Annotated[Literal["zookeeper", "kafka"], described("Where its members are.")]
    phase: Literal["stable", "rebalancing", "empty"]
    paused: Annotated[bool, described("Whether the group is paused: its members leave.")]
    generation: Annotated[MaybeCount, described("null for Kafka's own protocols, which do not tell it.")]
    partitions: Count
    unowned: Count
    reserved: Annotated[Count, described("Those of `unowned` that wait for a restart (`restart_grace_s`).")]
    lag: MaybeCount
    lag_s: Annotated[MaybeReal, described("For how long the oldest record that is not committed has waited.")]
    lag_least_s: Annotated[MaybeReal, described("If `lag_s` is unknown: at least so long.")]
    produced: Annotated[MaybeReal, described("Written records per second.")]
    consumed: Annotated[MaybeReal, described("Committed records per second.")]
    measured_at: Annotated[MaybeReal, described("When Kafka last answered.")]
    last_rebalance: Optional[LastRebalanceJson]
    problems: Count


class SeveritiesJson(Response):
    critical: Count
    warning: Count
    info: Count


class SummaryJson(FiguresJson):
    members: Count
    findings: SeveritiesJson


class ClusterJson(Response):
    cluster: str
    ok: bool
    as_of: Annotated[MaybeReal, described("Time of its newest data; null: current, or none yet.")]
    away_since: MaybeReal
    why: MaybeText


class OverviewJson(Response):
    ready: bool
    read_only: bool
    clusters: list[ClusterJson]
    groups: list[SummaryJson]
    problems: list[str]


class TopicOfClusterJson(Response):
    topic: str
    partitions: Count
    replicas: Annotated[MaybeCount, described("Of each partition; the least, if they differ.")]
    leaderless: Annotated[MaybeCount, described("Partitions without a leader.")]
    records: Annotated[MaybeCount, described("In the log; null for a topic that no group reads.")]
    lag: Annotated[MaybeCount, described("The sum over its groups.")]
    groups: list[str]


class TopicsJson(Response):
    complete: Annotated[bool, described("Whether Kafka described its topics; otherwise only those of the groups.")]
    topics: list[TopicOfClusterJson]


class BrokerJson(Response):
    id: int
    host: Annotated[MaybeText, described("null for a broker that has replicas and is not in the cluster.")]
    port: MaybeCount
    rack: MaybeText
    controller: bool
    leads: Annotated[Count, described("Partitions that it leads.")]
    replicas: Annotated[Count, described("Partitions of which it should have a replica.")]


class BrokersJson(Response):
    complete: Annotated[bool, described("Whether Kafka described its brokers.")]
    brokers: list[BrokerJson]


class MemberJson(Response):
    id: str
    name: Annotated[str, described("Client id, host, process id and a short id: how the member is shown.")]
    client_id: str
    host: MaybeText
    pid: MaybeCount
    version: Annotated[MaybeText, described("Of allocator in its process; null if the member does not say it.")]
    partitions: Count
    lag: MaybeCount
    gone: bool
    rack: Union[str, UnsetType, None] = UNSET
    weight: Union[float, UnsetType] = UNSET
    joined: Annotated[Union[float, UnsetType, None], described("By the clock of ZooKeeper.")] = UNSET
    session_timeout_s: Union[float, UnsetType, None] = UNSET
    topics: Union[list[str], UnsetType] = UNSET
    pattern: Union[str, UnsetType, None] = UNSET
    strategies: Union[list[str], UnsetType] = UNSET
    refused: Union[str, UnsetType, None] = UNSET
    releasing: Union[int, UnsetType] = UNSET


class TopicJson(Response):
    topic: str
    partitions: Annotated[str, described('As ranges: "0-3,7".')]
    owners: Annotated[list[int], described("For each partition the index in `members`; -1 for none.")]
    to: Annotated[dict[str, Count], described("Moving partition -> index of the member that gets it.")]
    moved: Annotated[dict[str, str], described("Partition that the last rebalance moved -> former owner.")]
    unowned: list[Count]
    retired: Annotated[bool, described("Whether no member subscribes to it any more.")]


class FindingJson(Response):
    id: str
    severity: Literal["info", "warning", "critical"]
    what: str
    where: str
    why: str
    do: str
    command: MaybeText


class WaitedForJson(Response):
    member: str
    s: float


class MovesBetweenJson(Response):
    from_: MaybeText
    to: MaybeText
    partitions: Count


class RebalanceJson(Response):
    id: Annotated[int, described("Names it in the group.")]
    generation: MaybeCount
    began: float
    ended: MaybeReal
    took_s: Annotated[MaybeReal, described("From the first event; null during the rebalance or if unknown.")]
    unnoticed_s: Annotated[
        MaybeReal,
        described("About the longest time that partitions of crashed members had no reader before; null if unknown."),
    ]
    longest_s: Annotated[
        MaybeReal, described("The longest time that a moved partition had no owner, counted from the fault.")
    ]
    superseded: bool
    why: list[str]
    strategy: str
    moved: Count
    total: Count
    waited_for: list[WaitedForJson]
    between: list[MovesBetweenJson]


class MemberNameJson(Response):
    id: str
    name: str


class MovesOfTopicJson(Response):
    topic: str
    partitions: list[Count]
    from_: Annotated[list[int], described("Index in `members`; -1: no owner.")]
    to: list[int]
    stood_s: Annotated[list[MaybeReal], described("From the release until the next claim.")]
    unnoticed_s: Annotated[list[MaybeReal], described("Before that: at most so long after a crash.")]


class RebalanceMovesJson(RebalanceJson):
    members: list[MemberNameJson]
    topics: list[MovesOfTopicJson]


class PointJson(Response):
    at: float
    lag: MaybeCount
    produced: MaybeReal
    consumed: MaybeReal
    commits: MaybeReal
    lag_s: MaybeReal


class LoadsJson(Response):
    source: Annotated[str, described("The setting `follow_load`: records, bytes, handler_s or reported.")]
    mean: Annotated[MaybeReal, described("Over the members, per unit of weight, in the unit of `members`.")]
    max_over_mean: Annotated[MaybeReal, described("The busiest member, in shares; null if no load is known.")]
    unknown: Annotated[Count, described("Partitions of unknown load, which count as the mean of the others.")]
    members: Annotated[
        dict[str, MaybeReal], described("Member -> load a second; null while no load of its partitions is known.")
    ]


class ResultJson(Response):
    when: float
    by: str
    partitions: dict[str, str]
    what: str


class OrderJson(Response):
    id: str
    kind: str
    text: Annotated[str, described("The order in a few words.")]
    summary: Annotated[str, described("What it makes the group do.")]
    arguments: dict[str, Any]
    who: str
    at: float
    why: str
    expires: MaybeReal
    state: Annotated[State, described("What became of it, as the leader or the owners say.")]
    state_why: str
    results: Annotated[list[ResultJson], described("What owners did about an order that is carried out once.")]


class BudgetJson(Response):
    at_once: MaybeCount
    per_minute: MaybeCount
    moving: Count
    moved: Annotated[
        list[tuple[float, Count]],
        described("The latest moves that count in a minute: when, and how many partitions."),
    ]


class GroupJson(FiguresJson):
    members: list[MemberJson]
    departed: Annotated[dict[str, str], described("Id -> name of the members that left last.")]
    topics: list[TopicJson]
    leader: MaybeText
    strategy: MaybeText
    revision: Count
    findings: list[FindingJson]
    rebalances: list[RebalanceJson]
    series: list[PointJson]
    orders: list[OrderJson]
    loads: Annotated[Optional[LoadsJson], described("null for a group that does not follow load.")]
    budget: Annotated[Optional[BudgetJson], described("The limits of the order `budget`, and its use.")]


class OffsetsOfPartition(Response):
    topic: str
    partition: Count
    owner_name: MaybeText
    committed: MaybeCount
    log_start: MaybeCount
    log_end: MaybeCount
    lag: MaybeCount


class PartitionJson(OffsetsOfPartition):
    owner: MaybeText
    client_id: MaybeText
    metadata: MaybeText


class PartitionsJson(Response):
    partitions: list[PartitionJson]


class OffsetsOfTopicJson(Response):
    committed: list[MaybeCount]
    start: list[MaybeCount]
    end: list[MaybeCount]
    lag: list[MaybeCount]
    lag_s: list[MaybeReal]
    rate: list[MaybeReal]
    committed_at: Annotated[list[MaybeReal], described("When the offset was seen to change last.")]
    fence: Annotated[list[MaybeCount], described("The fencing token of the owner, or a number above it.")]
    fence_exact: list[bool]


class OffsetsJson(Response):
    as_of: MaybeReal
    topics: dict[str, OffsetsOfTopicJson]


class EventJson(Response):
    at: float
    kind: Literal["order", "deployment", "outage"]
    text: str
    who: MaybeText


class PastJson(Response):
    points: list[PointJson]
    rebalances: list[RebalanceJson]
    events: list[EventJson]


class DecodedJson(Response):
    format: Literal["null", "json", "text", "hex", "avro", "protobuf", "masked"]
    text: Annotated[str, described("The value as text; masked fields are ***.")]
    cut: Annotated[bool, described("Whether the text is longer; a download has all of it.")]
    size: Annotated[Count, described("Bytes on the wire.")]
    note: Annotated[str, described("The schema, or why there is none.")]


class HeaderJson(DecodedJson):
    name: str


class SeenRecordJson(Response):
    partition: Count
    offset: Count
    timestamp_ms: MaybeCount
    key: DecodedJson
    value: DecodedJson
    headers: list[HeaderJson]


class RecordsJson(Response):
    topic: str
    records: list[SeenRecordJson]
    windows: Annotated[
        list[ReadWindow], described("Looked at: offsets `first` to `next` - 1, of the log's `begin` to `end` - 1.")
    ]
    scanned: Annotated[Count, described("Records that were looked at.")]
    stopped: Annotated[
        Literal["", "records", "bytes", "time"], described("The limit that ended the read; empty if none did.")
    ]
    by_partitioner: Annotated[bool, described("Whether the default partitioner chose the partition of the key.")]


class ChangeJson(Response):
    at: float
    kind: str
    text: str
    group: MaybeText
    who: MaybeText
    address: MaybeText
    detail: dict[str, Any]


class ChangesJson(Response):
    changes: list[ChangeJson]


class AskedJson(Response):
    group: str
    asked: bool


class PausedJson(Response):
    group: str
    paused: bool


class ResetPartitionJson(Response):
    topic: str
    partition: Count
    from_: MaybeCount
    to: Count


class ResetJson(Response):
    group: str
    executed: bool
    members_alive: list[str]
    partitions: list[ResetPartitionJson]


class OrderedJson(Response):
    group: str
    order: str
    state: State
    state_why: str


class MoveJson(Response):
    topic: str
    partition: Count
    from_: MaybeText
    to: MaybeText
    from_name: MaybeText
    to_name: MaybeText


class PlannedMemberJson(Response):
    id: str
    name: str
    change: Optional[Literal["joins", "leaves", "fails"]]
    partitions_before: Count
    partitions_after: Count
    lag_before: MaybeCount
    lag_after: MaybeCount


class StandstillJson(Response):
    round_trip_s: float
    move_s: Annotated[float, described("Expected for each moving partition, besides its handler.")]
    failed_s: Annotated[MaybeReal, described("At most so long more for partitions of failed members.")]
    duration_s: Annotated[float, described("From the first move to the last.")]


class PlanJson(Response):
    group: str
    function: str
    moves: list[MoveJson]
    members: list[PlannedMemberJson]
    voluntary_moves: Annotated[Count, described("Moves away from a member that lives on.")]
    standstill: StandstillJson
    orders: list[dict[str, Any]]
    executed: Annotated[Union[bool, UnsetType], described("Whether the orders were given.")] = UNSET
    applied: Annotated[Union[list[str], UnsetType], described("The ids of the given orders.")] = UNSET


class PreviewedPartitionJson(OffsetsOfPartition):
    to: Annotated[MaybeCount, described("Where a seek leads to.")]


class OrderPreviewJson(Response):
    group: str
    executed: bool
    order: Annotated[dict[str, Any], described("As `allocator group orders --json` has it.")]
    partitions: Annotated[list[PreviewedPartitionJson], described("The partitions of an order about records.")]
    creates: Annotated[MaybeText, described("The topic that the order creates, unless it exists.")]
    plan: Annotated[Optional[PlanJson], described("The plan of any other order.")]


class WithdrawnJson(Response):
    group: str
    withdrawn: list[str]


class DeletedJson(Response):
    group: str
    executed: bool
    members_alive: Annotated[list[str], described("Members that prevent it.")]
    znodes: Count
    committed: Annotated[MaybeCount, described("Partitions with a committed offset in Kafka.")]
    offsets_stay: Annotated[str, described("Why the offsets stay, or an empty text.")]


class SettlingJson(Response):
    action: str
    at_ms: int
    by: str
    reason: str


class LetterJson(Response):
    letter: LetterName
    topic: Annotated[MaybeText, described("Of the record, as are partition and offset.")]
    partition: MaybeCount
    offset: MaybeCount
    timestamp_ms: Annotated[Optional[int], described("null in a log without timestamps (0.9).")]
    group: str
    error: str
    attempts: MaybeCount
    redrives: Count
    settled: Optional[SettlingJson]


class LetterTopicsJson(Response):
    topics: Annotated[list[str], described("Topics that may have dead letters.")]


class LettersJson(Response):
    topic: str
    executed: bool
    count: Count
    letters: list[LetterJson]


class LetterShownJson(LetterJson):
    executed: bool
    stack: str
    record: Annotated[Optional[SeenRecordJson], described("null if this server shows no records.")]


class RefusedLetterJson(Response):
    letter: str
    why: str


class SettledJson(LettersJson):
    refused: list[RefusedLetterJson]


class RemovedJson(Response):
    group: str
    removed: list[str]


class NotedJson(Response):
    group: str
    noted: str
