"""Describes the API's responses: a class for each JSON object, for the OpenAPI description.

The server sends plain dictionaries; the tests validate them against these classes. Times are epoch seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Optional, Union

from msgspec import UNSET, Meta, Struct, UnsetType

from allocator.operate import COMMAND_STATES
from allocator.viewer import ReadWindow

Count = Annotated[int, Meta(ge=0)]
MaybeCount = Optional[Count]
MaybeReal = Optional[float]
MaybeText = Optional[str]
State = Annotated[str, Meta(extra_json_schema={"enum": list(COMMAND_STATES)})]


def described(text: str) -> Meta:
    """Returns the description of a field."""
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
    protocol: Annotated[Literal["zookeeper", "kafka"], described("The service that coordinates the group.")]
    phase: Annotated[
        Literal["stable", "rebalancing", "paused", "empty", "unknown"],
        described(
            "paused: all members have left. unknown: no member is shown, and there may be some in another layout, "
            "protocol or cluster; or it is not known how many partitions the group has."
        ),
    ]
    paused: Annotated[bool, described("Whether the group is paused, so that its members leave.")]
    generation: Annotated[MaybeCount, described("null if the group uses Kafka's own protocols.")]
    partitions: Count
    unowned: Annotated[MaybeCount, described("null if the members or all partitions are unknown.")]
    reserved: Annotated[
        Count, described("Partitions among `unowned` that are reserved for a restarting member (`restart_grace_s`).")
    ]
    lag: MaybeCount
    lag_s: Annotated[MaybeReal, described("Seconds that the oldest uncommitted record has waited.")]
    lag_least_s: Annotated[MaybeReal, described("Lower bound of `lag_s` while that is unknown.")]
    produced: Annotated[MaybeReal, described("Written records per second.")]
    consumed: Annotated[MaybeReal, described("Committed records per second.")]
    measured_at: Annotated[MaybeReal, described("Time of Kafka's last response.")]
    last_rebalance: Optional[LastRebalanceJson]
    problems: Count


class SeveritiesJson(Response):
    critical: Count
    warning: Count
    info: Count


class SummaryJson(FiguresJson):
    members: MaybeCount
    findings: SeveritiesJson


class ClusterJson(Response):
    cluster: str
    ok: bool
    as_of: Annotated[
        MaybeReal, described("Time of the cluster's newest data; null if the data is current, or if there is none yet.")
    ]
    away_since: MaybeReal
    why: MaybeText


class OverviewJson(Response):
    ready: bool
    read_only: bool
    clusters: list[ClusterJson]
    groups: list[SummaryJson]
    absent: Annotated[
        list[str],
        described("Groups that the server was started for, and of which Kafka has neither members nor offsets."),
    ]
    problems: list[str]


class TopicOfClusterJson(Response):
    topic: str
    partitions: Count
    replicas: Annotated[MaybeCount, described("Replicas of each partition; the minimum if they differ.")]
    leaderless: Annotated[MaybeCount, described("Partitions without a leader.")]
    records: Annotated[MaybeCount, described("Records in the log, from its first to its last offset.")]
    lag: Annotated[MaybeCount, described("Sum over the topic's groups.")]
    groups: list[str]


class TopicsJson(Response):
    complete: Annotated[bool, described("False if Kafka sent no metadata; only the groups' topics are listed then.")]
    topics: list[TopicOfClusterJson]


class BrokerJson(Response):
    id: int
    host: Annotated[MaybeText, described("null for a broker that should have replicas but is not in the cluster.")]
    port: MaybeCount
    rack: MaybeText
    controller: bool
    leads: Annotated[Count, described("Partitions that the broker leads.")]
    replicas: Annotated[Count, described("Partitions of which the broker should have a replica.")]


class BrokersJson(Response):
    complete: Annotated[bool, described("False if Kafka sent no metadata.")]
    brokers: list[BrokerJson]


class MemberJson(Response):
    id: str
    name: Annotated[str, described("Display name: client id, host, process id and a short id.")]
    client_id: str
    host: MaybeText
    pid: MaybeCount
    version: Annotated[
        MaybeText, described("Version of allocator in the member's process; null if the member does not report it.")
    ]
    partitions: Count
    lag: MaybeCount
    gone: bool
    rack: Union[str, UnsetType, None] = UNSET
    weight: Union[float, UnsetType] = UNSET
    joined: Annotated[Union[float, UnsetType, None], described("Time of joining, by ZooKeeper's clock.")] = UNSET
    session_timeout_s: Union[float, UnsetType, None] = UNSET
    topics: Union[list[str], UnsetType] = UNSET
    pattern: Union[str, UnsetType, None] = UNSET
    strategies: Union[list[str], UnsetType] = UNSET
    refused: Union[str, UnsetType, None] = UNSET
    releasing: Union[int, UnsetType] = UNSET
    logs: Annotated[
        Union[str, UnsetType, None],
        described(
            "A command that prints the log of the member's process, if systemd runs it; null without a process id."
        ),
    ] = UNSET


class TopicJson(Response):
    topic: str
    partitions: Annotated[str, described('Ranges, such as "0-3,7".')]
    owners: Annotated[list[int], described("Index in `members` of each partition's owner; -1 without an owner.")]
    to: Annotated[dict[str, Count], described("Moving partition -> index of its next owner in `members`.")]
    moved: Annotated[dict[str, str], described("Partition that the last rebalance moved -> its former owner.")]
    unowned: list[Count]
    retired: Annotated[bool, described("Whether no member subscribes to the topic any more.")]


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
    id: Annotated[int, described("Unique in the group.")]
    generation: MaybeCount
    began: float
    ended: MaybeReal
    took_s: Annotated[
        MaybeReal, described("Seconds from the first event to the last claim; null during the rebalance or if unknown.")
    ]
    unnoticed_s: Annotated[
        MaybeReal, described("Upper bound of the seconds from a crash until ZooKeeper noticed it; null if unknown.")
    ]
    longest_s: Annotated[
        MaybeReal, described("Longest time in seconds that a moved partition had no owner, counted from the fault.")
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
    from_: Annotated[list[int], described("Index in `members` of the former owner; -1 without an owner.")]
    to: list[int]
    stood_s: Annotated[list[MaybeReal], described("Seconds from the release until the next claim.")]
    unnoticed_s: Annotated[
        list[MaybeReal], described("Upper bound of the seconds from a crash until ZooKeeper noticed it.")
    ]


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
    mean: Annotated[MaybeReal, described("Mean load of the members per unit of weight.")]
    max_over_mean: Annotated[
        MaybeReal, described("Load of the busiest member relative to its share; null if no load is known.")
    ]
    unknown: Annotated[Count, described("Number of partitions of unknown load; each counts as the mean of the rest.")]
    members: Annotated[
        dict[str, MaybeReal], described("Member -> load per second; null while no load of its partitions is known.")
    ]


class ResultJson(Response):
    when: float
    by: str
    partitions: dict[str, str]
    what: str


class CommandJson(Response):
    id: str
    kind: str
    text: Annotated[str, described("Short text of the command.")]
    summary: Annotated[str, described("Effect of this kind of command.")]
    arguments: dict[str, Any]
    who: str
    at: float
    why: str
    expires: MaybeReal
    state: Annotated[State, described("State of the command, as the leader or the owners report it.")]
    state_why: str
    results: Annotated[list[ResultJson], described("Results of the owners, for a command that is executed once.")]


class BudgetJson(Response):
    at_once: MaybeCount
    per_minute: MaybeCount
    moving: Count
    moved: Annotated[
        list[tuple[float, Count]], described("Latest moves within a minute: time and number of partitions.")
    ]


class GroupJson(FiguresJson):
    members: list[MemberJson]
    departed: Annotated[dict[str, str], described("Id -> name of members that left recently.")]
    topics: list[TopicJson]
    leader: MaybeText
    strategy: MaybeText
    revision: Count
    findings: list[FindingJson]
    rebalances: list[RebalanceJson]
    series: list[PointJson]
    commands: list[CommandJson]
    loads: Annotated[Optional[LoadsJson], described("null for a group without `follow_load`.")]
    budget: Annotated[Optional[BudgetJson], described("Limits of the command `budget`, and the moves that count.")]


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
    committed_at: Annotated[list[MaybeReal], described("Time at which the server last saw the offset change.")]
    fence: Annotated[
        list[MaybeCount], described("Fencing token of the owner; if `fence_exact` is false, an upper bound.")
    ]
    fence_exact: list[bool]


class OffsetsJson(Response):
    as_of: MaybeReal
    topics: dict[str, OffsetsOfTopicJson]


class EventJson(Response):
    at: float
    kind: Literal["command", "deployment", "outage"]
    text: str
    who: MaybeText


class PastJson(Response):
    points: list[PointJson]
    rebalances: list[RebalanceJson]
    events: list[EventJson]


class DecodedJson(Response):
    format: Literal["null", "json", "text", "hex", "avro", "protobuf", "masked"]
    text: Annotated[str, described("The value as text; masked fields are ***.")]
    cut: Annotated[bool, described("Whether the text is shortened; a download has all of it.")]
    size: Annotated[Count, described("Size in bytes.")]
    note: Annotated[str, described("The schema, or the reason why there is none.")]


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
        list[ReadWindow], described("Offsets read, `first` to `next` - 1, within the log, `begin` to `end` - 1.")
    ]
    scanned: Annotated[Count, described("Number of records read.")]
    stopped: Annotated[
        Literal["", "records", "bytes", "time"], described("The limit that ended the read; empty if no limit did.")
    ]
    by_partitioner: Annotated[bool, described("Whether the partition is the default partitioner's choice for the key.")]
    leaderless: Annotated[list[int], described("Partitions that were not read, because they have no leader.")]


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


class CommandGivenJson(Response):
    group: str
    command: str
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
    move_s: Annotated[float, described("Expected standstill of each moving partition in seconds, without its handler.")]
    failed_s: Annotated[MaybeReal, described("Upper bound of the additional seconds for partitions of failed members.")]
    duration_s: Annotated[float, described("Seconds from the first move to the last.")]


class PlanJson(Response):
    group: str
    function: str
    moves: list[MoveJson]
    members: list[PlannedMemberJson]
    voluntary_moves: Annotated[Count, described("Number of moves from members that stay in the group.")]
    standstill: StandstillJson
    commands: list[dict[str, Any]]
    executed: Annotated[Union[bool, UnsetType], described("Whether the commands were added.")] = UNSET
    applied: Annotated[Union[list[str], UnsetType], described("Ids of the added commands.")] = UNSET


class PreviewedPartitionJson(OffsetsOfPartition):
    to: Annotated[MaybeCount, described("Target offset of a seek.")]


class CommandPreviewJson(Response):
    group: str
    executed: bool
    command: Annotated[dict[str, Any], described("The command, as in `allocator group commands --json`.")]
    partitions: Annotated[list[PreviewedPartitionJson], described("The partitions of a command about records.")]
    creates: Annotated[MaybeText, described("The topic that the command would create; null if it exists.")]
    plan: Annotated[Optional[PlanJson], described("The plan of any other command.")]


class WithdrawnJson(Response):
    group: str
    withdrawn: list[str]


class DeletedJson(Response):
    group: str
    executed: bool
    members_alive: Annotated[list[str], described("Live members. The group can be deleted only without any.")]
    znodes: Count
    committed: Annotated[MaybeCount, described("Partitions with a committed offset in Kafka.")]
    offsets_stay: Annotated[str, described("Why the offsets are kept; empty if they are deleted.")]
    offsets_refused: Annotated[
        str, described("Why Kafka would refuse to delete the offsets; then nothing is deleted. Empty if it would not.")
    ]
    paused: Annotated[bool, described("Whether the group is paused: then its services wait, and it is not deleted.")]
    brokers: Annotated[Optional[str], described("The cluster choice that is deleted with the group.")]


class SettlingJson(Response):
    action: str
    at_ms: int
    by: str
    reason: str


class LetterJson(Response):
    letter: LetterName
    topic: Annotated[MaybeText, described("Topic of the failed record, to which `partition` and `offset` also refer.")]
    partition: MaybeCount
    offset: MaybeCount
    timestamp_ms: Annotated[Optional[int], described("null in logs without timestamps (Kafka 0.9).")]
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
    record: Annotated[Optional[SeenRecordJson], described("null if the server shows no records.")]


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
