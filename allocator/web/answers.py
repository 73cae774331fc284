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


def says(text: str) -> Meta:
    """The description of a field."""
    return Meta(description=text)


LetterName = Annotated[str, Meta(pattern="^[0-9]{1,9}:[0-9]{1,18}$", description="PARTITION:OFFSET of the letter.")]


class Answer(Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    pass


class WhyJson(Answer):
    message: str
    retriable: bool


class ErrorJson(Answer):
    error: WhyJson


class HealthJson(Answer):
    ok: bool
    problems: list[str]


class LastRebalanceJson(Answer):
    id: int
    began: float
    ended: MaybeReal
    took_s: MaybeReal
    moved: Count


class FiguresJson(Answer):
    group: str
    protocol: Annotated[Literal["zookeeper", "kafka"], says("Where its members are.")]
    phase: Literal["stable", "rebalancing", "empty"]
    paused: Annotated[bool, says("Whether the group is paused: its members leave.")]
    generation: Annotated[MaybeCount, says("null for Kafka's own protocols, which do not tell it.")]
    partitions: Count
    unowned: Count
    reserved: Annotated[Count, says("Those of `unowned` that wait for a restart (`restart_grace_s`).")]
    lag: MaybeCount
    lag_s: Annotated[MaybeReal, says("For how long the oldest record that is not committed has waited.")]
    lag_least_s: Annotated[MaybeReal, says("If `lag_s` is unknown: at least so long.")]
    produced: Annotated[MaybeReal, says("Written records per second.")]
    consumed: Annotated[MaybeReal, says("Committed records per second.")]
    measured_at: Annotated[MaybeReal, says("When Kafka last answered.")]
    last_rebalance: Optional[LastRebalanceJson]
    problems: Count


class SeveritiesJson(Answer):
    critical: Count
    warning: Count
    info: Count


class SummaryJson(FiguresJson):
    members: Count
    findings: SeveritiesJson


class ClusterJson(Answer):
    cluster: str
    ok: bool
    as_of: Annotated[MaybeReal, says("Time of its newest data; null: current, or none yet.")]
    away_since: MaybeReal
    why: MaybeText


class OverviewJson(Answer):
    ready: bool
    read_only: bool
    clusters: list[ClusterJson]
    groups: list[SummaryJson]
    problems: list[str]


class TopicOfClusterJson(Answer):
    topic: str
    partitions: Count
    replicas: Annotated[MaybeCount, says("Of each partition; the least, if they differ.")]
    leaderless: Annotated[MaybeCount, says("Partitions without a leader.")]
    records: Annotated[MaybeCount, says("In the log; null for a topic that no group reads.")]
    lag: Annotated[MaybeCount, says("The sum over its groups.")]
    groups: list[str]


class TopicsJson(Answer):
    complete: Annotated[bool, says("Whether Kafka described its topics; otherwise only those of the groups.")]
    topics: list[TopicOfClusterJson]


class BrokerJson(Answer):
    id: int
    host: Annotated[MaybeText, says("null for a broker that has replicas and is not in the cluster.")]
    port: MaybeCount
    rack: MaybeText
    controller: bool
    leads: Annotated[Count, says("Partitions that it leads.")]
    replicas: Annotated[Count, says("Partitions of which it should have a replica.")]


class BrokersJson(Answer):
    complete: Annotated[bool, says("Whether Kafka described its brokers.")]
    brokers: list[BrokerJson]


class MemberJson(Answer):
    id: str
    name: Annotated[str, says("Client id, host, process id and a short id: how the member is shown.")]
    client_id: str
    host: MaybeText
    pid: MaybeCount
    version: Annotated[MaybeText, says("Of allocator in its process; null if the member does not say it.")]
    partitions: Count
    lag: MaybeCount
    gone: bool
    rack: Union[str, UnsetType, None] = UNSET
    weight: Union[float, UnsetType] = UNSET
    joined: Annotated[Union[float, UnsetType, None], says("By the clock of ZooKeeper.")] = UNSET
    session_timeout_s: Union[float, UnsetType, None] = UNSET
    topics: Union[list[str], UnsetType] = UNSET
    pattern: Union[str, UnsetType, None] = UNSET
    strategies: Union[list[str], UnsetType] = UNSET
    refused: Union[str, UnsetType, None] = UNSET
    releasing: Union[int, UnsetType] = UNSET


class TopicJson(Answer):
    topic: str
    partitions: Annotated[str, says('As ranges: "0-3,7".')]
    owners: Annotated[list[int], says("For each partition the index in `members`; -1 for none.")]
    to: Annotated[dict[str, Count], says("Moving partition -> index of the member that gets it.")]
    moved: Annotated[dict[str, str], says("Partition that the last rebalance moved -> former owner.")]
    unowned: list[Count]
    retired: Annotated[bool, says("Whether no member subscribes to it any more.")]


class FindingJson(Answer):
    id: str
    severity: Literal["info", "warning", "critical"]
    what: str
    where: str
    why: str
    do: str
    command: MaybeText


class WaitedForJson(Answer):
    member: str
    s: float


class MovesBetweenJson(Answer):
    from_: MaybeText
    to: MaybeText
    partitions: Count


class RebalanceJson(Answer):
    id: Annotated[int, says("Names it in the group.")]
    generation: MaybeCount
    began: float
    ended: MaybeReal
    took_s: Annotated[MaybeReal, says("From the first event; null during the rebalance or if unknown.")]
    unnoticed_s: Annotated[
        MaybeReal,
        says("About the longest time that partitions of crashed members had no reader before; null if unknown."),
    ]
    longest_s: Annotated[
        MaybeReal, says("The longest time that a moved partition had no owner, counted from the fault.")
    ]
    superseded: bool
    why: list[str]
    strategy: str
    moved: Count
    total: Count
    waited_for: list[WaitedForJson]
    between: list[MovesBetweenJson]


class MemberNameJson(Answer):
    id: str
    name: str


class MovesOfTopicJson(Answer):
    topic: str
    partitions: list[Count]
    from_: Annotated[list[int], says("Index in `members`; -1: no owner.")]
    to: list[int]
    stood_s: Annotated[list[MaybeReal], says("From the release until the next claim.")]
    unnoticed_s: Annotated[list[MaybeReal], says("Before that: at most so long after a crash.")]


class RebalanceMovesJson(RebalanceJson):
    members: list[MemberNameJson]
    topics: list[MovesOfTopicJson]


class PointJson(Answer):
    at: float
    lag: MaybeCount
    produced: MaybeReal
    consumed: MaybeReal
    commits: MaybeReal
    lag_s: MaybeReal


class LoadsJson(Answer):
    source: Annotated[str, says("The setting `follow_load`: records, bytes, handler_s or reported.")]
    mean: Annotated[MaybeReal, says("Over the members, per unit of weight, in the unit of `members`.")]
    max_over_mean: Annotated[MaybeReal, says("The busiest member, in shares; null if no load is known.")]
    unknown: Annotated[Count, says("Partitions of unknown load, which count as the mean of the others.")]
    members: Annotated[
        dict[str, MaybeReal], says("Member -> load a second; null while no load of its partitions is known.")
    ]


class ResultJson(Answer):
    when: float
    by: str
    partitions: dict[str, str]
    what: str


class OrderJson(Answer):
    id: str
    kind: str
    text: Annotated[str, says("The order in a few words.")]
    summary: Annotated[str, says("What it makes the group do.")]
    arguments: dict[str, Any]
    who: str
    at: float
    why: str
    expires: MaybeReal
    state: Annotated[State, says("What became of it, as the leader or the owners say.")]
    state_why: str
    results: Annotated[list[ResultJson], says("What owners did about an order that is carried out once.")]


class BudgetJson(Answer):
    at_once: MaybeCount
    per_minute: MaybeCount
    moving: Count
    moved: Annotated[
        list[tuple[float, Count]],
        says("The latest moves that count in a minute: when, and how many partitions."),
    ]


class GroupJson(FiguresJson):
    members: list[MemberJson]
    departed: Annotated[dict[str, str], says("Id -> name of the members that left last.")]
    topics: list[TopicJson]
    leader: MaybeText
    strategy: MaybeText
    revision: Count
    findings: list[FindingJson]
    rebalances: list[RebalanceJson]
    series: list[PointJson]
    orders: list[OrderJson]
    loads: Annotated[Optional[LoadsJson], says("null for a group that does not follow load.")]
    budget: Annotated[Optional[BudgetJson], says("The limits of the order `budget`, and what counts against them.")]


class OffsetsOfPartition(Answer):
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


class PartitionsJson(Answer):
    partitions: list[PartitionJson]


class OffsetsOfTopicJson(Answer):
    committed: list[MaybeCount]
    start: list[MaybeCount]
    end: list[MaybeCount]
    lag: list[MaybeCount]
    lag_s: list[MaybeReal]
    rate: list[MaybeReal]
    committed_at: Annotated[list[MaybeReal], says("When the offset was seen to change last.")]
    fence: Annotated[list[MaybeCount], says("The fencing token of the owner, or a number above it.")]
    fence_exact: list[bool]


class OffsetsJson(Answer):
    as_of: MaybeReal
    topics: dict[str, OffsetsOfTopicJson]


class EventJson(Answer):
    at: float
    kind: Literal["order", "deployment", "outage"]
    text: str
    who: MaybeText


class PastJson(Answer):
    points: list[PointJson]
    rebalances: list[RebalanceJson]
    events: list[EventJson]


class DecodedJson(Answer):
    format: Literal["null", "json", "text", "hex", "avro", "protobuf", "masked"]
    text: Annotated[str, says("The value as text; masked fields are ***.")]
    cut: Annotated[bool, says("Whether the text is longer; a download has all of it.")]
    size: Annotated[Count, says("Bytes on the wire.")]
    note: Annotated[str, says("The schema, or why there is none.")]


class HeaderJson(DecodedJson):
    name: str


class SeenRecordJson(Answer):
    partition: Count
    offset: Count
    timestamp_ms: MaybeCount
    key: DecodedJson
    value: DecodedJson
    headers: list[HeaderJson]


class RecordsJson(Answer):
    topic: str
    records: list[SeenRecordJson]
    windows: Annotated[
        list[ReadWindow], says("Looked at: offsets `first` to `next` - 1, of the log's `begin` to `end` - 1.")
    ]
    scanned: Annotated[Count, says("Records that were looked at.")]
    stopped: Annotated[
        Literal["", "records", "bytes", "time"], says("The limit that ended the read; empty if none did.")
    ]
    by_partitioner: Annotated[bool, says("Whether the default partitioner chose the partition of the key.")]


class ChangeJson(Answer):
    at: float
    kind: str
    text: str
    group: MaybeText
    who: MaybeText
    address: MaybeText
    detail: dict[str, Any]


class ChangesJson(Answer):
    changes: list[ChangeJson]


class AskedJson(Answer):
    group: str
    asked: bool


class PausedJson(Answer):
    group: str
    paused: bool


class ResetPartitionJson(Answer):
    topic: str
    partition: Count
    from_: MaybeCount
    to: Count


class ResetJson(Answer):
    group: str
    executed: bool
    members_alive: list[str]
    partitions: list[ResetPartitionJson]


class OrderedJson(Answer):
    group: str
    order: str
    state: State
    state_why: str


class MoveJson(Answer):
    topic: str
    partition: Count
    from_: MaybeText
    to: MaybeText
    from_name: MaybeText
    to_name: MaybeText


class PlannedMemberJson(Answer):
    id: str
    name: str
    change: Optional[Literal["joins", "leaves", "fails"]]
    partitions_before: Count
    partitions_after: Count
    lag_before: MaybeCount
    lag_after: MaybeCount


class StandstillJson(Answer):
    round_trip_s: float
    move_s: Annotated[float, says("Expected for each moving partition, besides its handler.")]
    failed_s: Annotated[MaybeReal, says("At most so long more for partitions of failed members.")]
    duration_s: Annotated[float, says("From the first move to the last.")]


class PlanJson(Answer):
    group: str
    function: str
    moves: list[MoveJson]
    members: list[PlannedMemberJson]
    voluntary_moves: Annotated[Count, says("Moves away from a member that lives on.")]
    standstill: StandstillJson
    orders: list[dict[str, Any]]
    executed: Annotated[Union[bool, UnsetType], says("Whether the orders were given.")] = UNSET
    applied: Annotated[Union[list[str], UnsetType], says("The ids of the given orders.")] = UNSET


class PreviewedPartitionJson(OffsetsOfPartition):
    to: Annotated[MaybeCount, says("Where a seek leads to.")]


class OrderPreviewJson(Answer):
    group: str
    executed: bool
    order: Annotated[dict[str, Any], says("As `allocator group orders --json` has it.")]
    partitions: Annotated[list[PreviewedPartitionJson], says("Of an order about records: its partitions as they are.")]
    creates: Annotated[MaybeText, says("The topic that the order creates, unless it exists.")]
    plan: Annotated[Optional[PlanJson], says("Of another order: the moves.")]


class WithdrawnJson(Answer):
    group: str
    withdrawn: list[str]


class DeletedJson(Answer):
    group: str
    executed: bool
    members_alive: Annotated[list[str], says("Members that prevent it.")]
    znodes: Count
    committed: Annotated[MaybeCount, says("Partitions with a committed offset in Kafka.")]
    offsets_stay: Annotated[str, says("Why the offsets stay, or an empty text.")]


class SettlingJson(Answer):
    action: str
    at_ms: int
    by: str
    reason: str


class LetterJson(Answer):
    letter: LetterName
    topic: Annotated[MaybeText, says("Of the record, as are partition and offset.")]
    partition: MaybeCount
    offset: MaybeCount
    timestamp_ms: Annotated[Optional[int], says("null in a log without timestamps (0.9).")]
    group: str
    error: str
    attempts: MaybeCount
    redrives: Count
    settled: Optional[SettlingJson]


class LetterTopicsJson(Answer):
    topics: Annotated[list[str], says("Topics that may have dead letters.")]


class LettersJson(Answer):
    topic: str
    executed: bool
    count: Count
    letters: list[LetterJson]


class LetterShownJson(LetterJson):
    executed: bool
    stack: str
    record: Annotated[Optional[SeenRecordJson], says("null if this server shows no records.")]


class RefusedLetterJson(Answer):
    letter: str
    why: str


class SettledJson(LettersJson):
    refused: list[RefusedLetterJson]


class RemovedJson(Answer):
    group: str
    removed: list[str]


class NotedJson(Answer):
    group: str
    noted: str
