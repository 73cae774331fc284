"""What the HTTP API answers, as an OpenAPI 3.1 description; the tests hold it true."""

from __future__ import annotations

from typing import Any

from allocator.core.membership.zookeeper.orders import KINDS
from allocator.handlers.schemas.decode import PLAIN_FORMATS
from allocator.operate import ORDER_STATES, WITHDRAWN_BY_PARTITION
from allocator.web.actions import SUPPOSITIONS

from .. import __version__

__all__ = ["describe_api"]

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
WHOLE: Schema = {"type": "integer"}
REAL: Schema = {"type": "number"}
YES: Schema = {"type": "boolean"}


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _map(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _object(*optional: str, **fields: Schema) -> Schema:
    required = sorted(set(fields) - set(optional))
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


FIGURES: dict[str, Schema] = {
    "group": TEXT,
    "protocol": {"enum": ["zookeeper", "kafka"], "description": "Where its members are."},
    "phase": {"enum": ["stable", "rebalancing", "empty"]},
    "paused": {**YES, "description": "Whether the group is paused: its members leave."},
    "generation": {**_maybe(COUNT), "description": "null for Kafka's own protocols, which do not tell it."},
    "partitions": COUNT,
    "unowned": COUNT,
    "reserved": {**COUNT, "description": "Those of `unowned` that wait for a restart (`restart_grace_s`)."},
    "lag": _maybe(COUNT),
    "lag_s": {**_maybe(REAL), "description": "For how long the oldest record that is not committed has waited."},
    "lag_least_s": {**_maybe(REAL), "description": "If `lag_s` is unknown: at least so long."},
    "produced": {**_maybe(REAL), "description": "Written records per second."},
    "consumed": {**_maybe(REAL), "description": "Committed records per second."},
    "measured_at": {**_maybe(REAL), "description": "When Kafka last answered."},
    "last_rebalance": _maybe(
        _object(id=WHOLE, began=REAL, ended=_maybe(REAL), took_s=_maybe(REAL), moved=COUNT),
    ),
    "problems": COUNT,
}
MOVES: dict[str, Schema] = {
    "members": _list(_object(id=TEXT, name=TEXT)),
    "topics": _list(
        _object(
            topic=TEXT,
            partitions=_list(COUNT),
            **{"from": {**_list(WHOLE), "description": "Index in `members`; -1: no owner."}, "to": _list(WHOLE)},
            stood_s={**_list(_maybe(REAL)), "description": "From the release until the next claim."},
            unnoticed_s={**_list(_maybe(REAL)), "description": "Before that: at most so long after a crash."},
        )
    ),
}
REBALANCE: dict[str, Schema] = {
    "id": {**WHOLE, "description": "Names it in the group."},
    "generation": _maybe(COUNT),
    "began": {**REAL, "description": "Epoch seconds, as is every time here."},
    "ended": _maybe(REAL),
    "took_s": {**_maybe(REAL), "description": "From the first event; null during the rebalance or if unknown."},
    "unnoticed_s": {
        **_maybe(REAL),
        "description": (
            "About the longest time that partitions of crashed members had no reader before; null if unknown."
        ),
    },
    "longest_s": {
        **_maybe(REAL),
        "description": "The longest time that a moved partition had no owner, counted from the fault.",
    },
    "superseded": YES,
    "why": _list(TEXT),
    "strategy": TEXT,
    "moved": COUNT,
    "total": COUNT,
    "waited_for": _list(_object(member=TEXT, s=REAL)),
    "between": _list(_object(**{"from": _maybe(TEXT), "to": _maybe(TEXT), "partitions": COUNT})),
}

ORDER: dict[str, Schema] = {
    "kind": {"enum": sorted(KINDS)},
    "arguments": {"type": "object", "description": "As the kind has them."},
    "why": TEXT,
    "hours": {**REAL, "description": "It ends after so many hours; without, it has no end."},
}
DECODED: dict[str, Schema] = {
    "format": {"enum": ["null", "json", "text", "hex", "avro", "protobuf", "masked"]},
    "text": {**TEXT, "description": "The value as text; masked fields are ***."},
    "cut": {**YES, "description": "Whether the text is longer; a download has all of it."},
    "size": {**COUNT, "description": "Bytes on the wire."},
    "note": {**TEXT, "description": "The schema, or why there is none."},
}
LETTER_NAME: Schema = {**TEXT, "pattern": "^[0-9]+:[0-9]+$", "description": "PARTITION:OFFSET of the letter."}
LETTER: dict[str, Schema] = {
    "letter": LETTER_NAME,
    "topic": {**_maybe(TEXT), "description": "Of the record, as are partition and offset."},
    "partition": _maybe(COUNT),
    "offset": _maybe(COUNT),
    "timestamp_ms": {**_maybe(WHOLE), "description": "null in a log without timestamps (0.9)."},
    "group": TEXT,
    "error": TEXT,
    "attempts": _maybe(COUNT),
    "redrives": COUNT,
    "settled": _maybe(_object(action=TEXT, at_ms=WHOLE, by=TEXT, reason=TEXT)),
}
LETTER_FILTER: dict[str, Schema] = {
    "error": {**TEXT, "description": "A part of the error, in any case."},
    "from_topic": {**TEXT, "description": "The topic of the record."},
    "since": {**TEXT, "description": "ISO 8601: letters written at this time or later."},
    "until": {**TEXT, "description": "ISO 8601: letters written before."},
}

SCHEMAS: dict[str, Schema] = {
    "Error": _object(error=_object(message=TEXT, retriable=YES)),
    "Health": _object(ok=YES, problems=_list(TEXT)),
    "Summary": _object(**FIGURES, members=COUNT, findings=_object(critical=COUNT, warning=COUNT, info=COUNT)),
    "Cluster": _object(
        cluster=TEXT,
        ok=YES,
        as_of={**_maybe(REAL), "description": "Time of its newest data; null: current, or none yet."},
        away_since=_maybe(REAL),
        why=_maybe(TEXT),
    ),
    "Overview": _object(
        ready=YES, read_only=YES, clusters=_list(_ref("Cluster")), groups=_list(_ref("Summary")), problems=_list(TEXT)
    ),
    "Topics": _object(
        complete={**YES, "description": "Whether Kafka described its topics; otherwise only those of the groups."},
        topics=_list(
            _object(
                topic=TEXT,
                partitions=COUNT,
                replicas={**_maybe(COUNT), "description": "Of each partition; the least, if they differ."},
                leaderless={**_maybe(COUNT), "description": "Partitions without a leader."},
                records={**_maybe(COUNT), "description": "In the log; null for a topic that no group reads."},
                lag={**_maybe(COUNT), "description": "The sum over its groups."},
                groups=_list(TEXT),
            )
        ),
    ),
    "Brokers": _object(
        complete={**YES, "description": "Whether Kafka described its brokers."},
        brokers=_list(
            _object(
                id=WHOLE,
                host={**_maybe(TEXT), "description": "null for a broker that has replicas and is not in the cluster."},
                port=_maybe(COUNT),
                rack=_maybe(TEXT),
                controller=YES,
                leads={**COUNT, "description": "Partitions that it leads."},
                replicas={**COUNT, "description": "Partitions of which it should have a replica."},
            )
        ),
    ),
    "Member": _object(
        *("joined", "session_timeout_s", "rack", "weight", "topics", "pattern", "strategies", "refused", "releasing"),
        id=TEXT,
        name={**TEXT, "description": "Client id, host, process id and a short id: how the member is shown."},
        client_id=TEXT,
        host=_maybe(TEXT),
        pid=_maybe(COUNT),
        version={**_maybe(TEXT), "description": "Of allocator in its process; null if the member does not say it."},
        rack=_maybe(TEXT),
        weight=REAL,
        joined={**_maybe(REAL), "description": "By the clock of ZooKeeper."},
        session_timeout_s=_maybe(REAL),
        topics=_list(TEXT),
        pattern=_maybe(TEXT),
        strategies=_list(TEXT),
        refused=_maybe(TEXT),
        releasing=COUNT,
        partitions=COUNT,
        lag=_maybe(COUNT),
        gone=YES,
    ),
    "Topic": {
        **_object(
            topic=TEXT,
            partitions={**TEXT, "description": 'As ranges: "0-3,7".'},
            owners={**_list(WHOLE), "description": "For each partition the index in `members`; -1 for none."},
            to={**_map(COUNT), "description": "Moving partition -> index of the member that gets it."},
            moved={**_map(TEXT), "description": "Partition that the last rebalance moved -> former owner."},
            unowned=_list(COUNT),
            retired={**YES, "description": "Whether no member subscribes to it any more."},
        )
    },
    "Finding": _object(
        id=TEXT,
        severity={"enum": ["info", "warning", "critical"]},
        what=TEXT,
        where=TEXT,
        why=TEXT,
        do=TEXT,
        command=_maybe(TEXT),
    ),
    "Rebalance": _object(**REBALANCE),
    "RebalanceMoves": _object(**REBALANCE, **MOVES),
    "Point": _object(
        at=REAL,
        lag=_maybe(COUNT),
        produced=_maybe(REAL),
        consumed=_maybe(REAL),
        commits=_maybe(REAL),
        lag_s=_maybe(REAL),
    ),
    "Loads": _object(
        source={**TEXT, "description": "The setting `follow_load`: records, bytes, handler_s or reported."},
        mean={**_maybe(REAL), "description": "Over the members, per unit of weight, in the unit of `members`."},
        max_over_mean={**_maybe(REAL), "description": "The busiest member, in shares; null if no load is known."},
        unknown={**COUNT, "description": "Partitions of unknown load, which count as the mean of the others."},
        members={
            **_map(_maybe(REAL)),
            "description": "Member -> load a second; null while no load of its partitions is known.",
        },
    ),
    "Group": _object(
        **FIGURES,
        members=_list(_ref("Member")),
        departed={**_map(TEXT), "description": "Id -> name of the members that left last."},
        topics=_list(_ref("Topic")),
        leader=_maybe(TEXT),
        strategy=_maybe(TEXT),
        revision=COUNT,
        findings=_list(_ref("Finding")),
        rebalances=_list(_ref("Rebalance")),
        series=_list(_ref("Point")),
        orders=_list(_ref("Order")),
        loads={**_maybe(_ref("Loads")), "description": "null for a group that does not follow load."},
        budget={
            **_maybe(
                _object(
                    at_once=_maybe(COUNT),
                    per_minute=_maybe(COUNT),
                    moving=COUNT,
                    moved={
                        **_list({"type": "array", "prefixItems": [REAL, COUNT], "minItems": 2, "maxItems": 2}),
                        "description": "The latest moves that count in a minute: when, and how many partitions.",
                    },
                )
            ),
            "description": "The limits of the order `budget`, and what counts against them.",
        },
    ),
    "Order": _object(
        id=TEXT,
        kind=TEXT,
        text={**TEXT, "description": "The order in a few words."},
        summary={**TEXT, "description": "What it makes the group do."},
        arguments={"type": "object"},
        who=TEXT,
        at=REAL,
        why=TEXT,
        expires=_maybe(REAL),
        state={"enum": list(ORDER_STATES), "description": "What became of it, as the leader or the owners say."},
        state_why=TEXT,
        results={
            **_list(_object(when=REAL, by=TEXT, partitions=_map(TEXT), what=TEXT)),
            "description": "What owners did about an order that is carried out once.",
        },
    ),
    "Partitions": _object(
        partitions=_list(
            _object(
                topic=TEXT,
                partition=COUNT,
                owner=_maybe(TEXT),
                owner_name=_maybe(TEXT),
                client_id=_maybe(TEXT),
                committed=_maybe(COUNT),
                metadata=_maybe(TEXT),
                log_start=_maybe(COUNT),
                log_end=_maybe(COUNT),
                lag=_maybe(COUNT),
            )
        )
    ),
    "Offsets": _object(
        as_of=_maybe(REAL),
        topics=_map(
            _object(
                committed=_list(_maybe(COUNT)),
                start=_list(_maybe(COUNT)),
                end=_list(_maybe(COUNT)),
                lag=_list(_maybe(COUNT)),
                lag_s=_list(_maybe(REAL)),
                rate=_list(_maybe(REAL)),
                committed_at={**_list(_maybe(REAL)), "description": "When the offset was seen to change last."},
                fence={**_list(_maybe(COUNT)), "description": "The fencing token of the owner, or a number above it."},
                fence_exact=_list(YES),
            )
        ),
    ),
    "Event": _object(at=REAL, kind={"enum": ["order", "deployment", "outage"]}, text=TEXT, who=_maybe(TEXT)),
    "Past": _object(points=_list(_ref("Point")), rebalances=_list(_ref("Rebalance")), events=_list(_ref("Event"))),
    "Decoded": _object(**DECODED),
    "SeenRecord": _object(
        partition=COUNT,
        offset=COUNT,
        timestamp_ms=_maybe(COUNT),
        key=_ref("Decoded"),
        value=_ref("Decoded"),
        headers=_list(_object(name=TEXT, **DECODED)),
    ),
    "Records": _object(
        topic=TEXT,
        records=_list(_ref("SeenRecord")),
        windows={
            **_list(_object(partition=COUNT, first=COUNT, next=COUNT, begin=COUNT, end=COUNT)),
            "description": "Looked at: offsets `first` to `next` - 1, of the log's `begin` to `end` - 1.",
        },
        scanned={**COUNT, "description": "Records that were looked at."},
        stopped={
            "enum": ["", "records", "bytes", "time"],
            "description": "The limit that ended the read; empty if none did.",
        },
        by_partitioner={**YES, "description": "Whether the default partitioner chose the partition of the key."},
    ),
    "Changes": _object(
        changes=_list(
            _object(
                at=REAL,
                kind=TEXT,
                text=TEXT,
                group=_maybe(TEXT),
                who=_maybe(TEXT),
                address=_maybe(TEXT),
                detail={"type": "object"},
            )
        )
    ),
    "Asked": _object(group=TEXT, asked=YES),
    "Paused": _object(group=TEXT, paused=YES),
    "Reset": _object(
        group=TEXT,
        executed=YES,
        members_alive=_list(TEXT),
        partitions=_list(_object(**{"topic": TEXT, "partition": COUNT, "from": _maybe(COUNT), "to": COUNT})),
    ),
    "Ordered": _object(group=TEXT, order=TEXT, state={"enum": list(ORDER_STATES)}, state_why=TEXT),
    "OrderPreview": _object(
        group=TEXT,
        executed=YES,
        order={"type": "object", "description": "As `allocator group orders --json` has it."},
        partitions={
            **_list(
                _object(
                    topic=TEXT,
                    partition=COUNT,
                    owner_name=_maybe(TEXT),
                    committed=_maybe(COUNT),
                    log_start=_maybe(COUNT),
                    log_end=_maybe(COUNT),
                    lag=_maybe(COUNT),
                    to={**_maybe(COUNT), "description": "Where a seek leads to."},
                )
            ),
            "description": "Of an order about records: its partitions as they are.",
        },
        creates={**_maybe(TEXT), "description": "The topic that the order creates, unless it exists."},
        plan={**_maybe(_ref("Plan")), "description": "Of another order: the moves."},
    ),
    "Withdrawn": _object(group=TEXT, withdrawn=_list(TEXT)),
    "WithdrawRequest": _object(
        kind={"enum": sorted(WITHDRAWN_BY_PARTITION)},
        arguments={"type": "object", "description": "`partitions`, and for skip `offset`."},
    ),
    "Plan": _object(
        *("executed", "applied"),
        group=TEXT,
        function=TEXT,
        moves=_list(
            _object(
                topic=TEXT,
                partition=COUNT,
                to=_maybe(TEXT),
                from_name=_maybe(TEXT),
                to_name=_maybe(TEXT),
                **{"from": _maybe(TEXT)},
            )
        ),
        members=_list(
            _object(
                id=TEXT,
                name=TEXT,
                change={"enum": ["joins", "leaves", "fails", None]},
                partitions_before=COUNT,
                partitions_after=COUNT,
                lag_before=_maybe(COUNT),
                lag_after=_maybe(COUNT),
            )
        ),
        voluntary_moves={**COUNT, "description": "Moves away from a member that lives on."},
        standstill=_object(
            round_trip_s=REAL,
            move_s={**REAL, "description": "Expected for each moving partition, besides its handler."},
            failed_s={**_maybe(REAL), "description": "At most so long more for partitions of failed members."},
            duration_s={**REAL, "description": "From the first move to the last."},
        ),
        orders=_list({"type": "object"}),
        executed={**YES, "description": "Whether the orders were given."},
        applied={**_list(TEXT), "description": "The ids of the given orders."},
    ),
    "PlanRequest": _object(
        *(*SUPPOSITIONS, "function", "orders", "apply", "why"),
        **{name: {**_list(TEXT), "description": f"As `--{name.replace('_', '-')}`."} for name in SUPPOSITIONS},
        function={**_maybe(TEXT), "description": "An allocator function that is built in, or that a member offers."},
        orders=_list(_ref("OrderRequest")),
        apply={**YES, "description": "Give the orders; refused with a supposition."},
        why=TEXT,
    ),
    "Deleted": _object(
        group=TEXT,
        executed=YES,
        members_alive={**_list(TEXT), "description": "Members that prevent it."},
        znodes=COUNT,
        committed={**_maybe(COUNT), "description": "Partitions with a committed offset in Kafka."},
        offsets_stay={**TEXT, "description": "Why the offsets stay, or an empty text."},
    ),
    "Letter": _object(**LETTER),
    "LetterTopics": _object(topics={**_list(TEXT), "description": "Topics that may have dead letters."}),
    "Letters": _object(topic=TEXT, executed=YES, count=COUNT, letters=_list(_ref("Letter"))),
    "LetterShown": _object(
        **LETTER,
        executed=YES,
        stack=TEXT,
        record={**_maybe(_ref("SeenRecord")), "description": "null if this server shows no records."},
    ),
    "Settled": _object(
        topic=TEXT,
        executed=YES,
        count=COUNT,
        letters=_list(_ref("Letter")),
        refused=_list(_object(letter=TEXT, why=TEXT)),
    ),
    "LettersRequest": _object(*LETTER_FILTER, "settled", **LETTER_FILTER, settled=YES),
    "LetterRequest": _object(letter=LETTER_NAME),
    "SettleRequest": _object(
        *(*LETTER_FILTER, "letters", "reason", "confirm"),
        **LETTER_FILTER,
        letters=_list(LETTER_NAME),
        reason={**TEXT, "description": "Of discard: why."},
        confirm={
            **TEXT,
            "description": "The topic; then `letters` names those that are settled. Without it the server only lists "
            "them.",
        },
    ),
    "DeleteRequest": _object(
        *("keep_offsets", "confirm"),
        keep_offsets=YES,
        confirm={**TEXT, "description": "The name of the group. Without it the server only returns the plan."},
    ),
    "OrderRequest": _object("why", "hours", **ORDER),
    "NewOrder": _object(
        *("why", "hours", "create"),
        **ORDER,
        create={**YES, "description": "Create the topic of the orders, for a group of Kafka's own protocols."},
    ),
    "Removed": _object(group=TEXT, removed=_list(TEXT)),
    "RemoveRequest": _object(ids=_list(TEXT)),
    "Noted": _object(group=TEXT, noted=TEXT),
    "NoteRequest": _object(text={**TEXT, "description": "What was deployed, or what else happened."}),
    "CopyRequest": _object(
        "confirm",
        to={**TEXT, "description": "The other group, which has no members."},
        confirm={**TEXT, "description": "The name of the other group. Without it the server only returns the plan."},
    ),
    "ResetRequest": _object(
        *("topics", "confirm"),
        to={
            "type": ["string", "integer"],
            "description": "earliest, latest, an offset, shift:N, timestamp:MILLISECONDS, or an ISO 8601 time",
        },
        topics={**_list(TEXT), "description": "Empty: all topics of the group."},
        confirm={**TEXT, "description": "The name of the group. Without it the server only returns the plan."},
    ),
}

GROUP = {"name": "group", "in": "path", "required": True, "schema": TEXT}

TIMES = tuple(
    {"name": name, "in": "query", "required": False, "schema": REAL, "description": "Epoch seconds."}
    for name in ("from", "to")
)
TOPIC = {"name": "topic", "in": "path", "required": True, "schema": TEXT}
RECORDS = tuple(
    {"name": name, "in": "query", "required": False, "schema": schema, "description": text}
    for name, schema, text in (
        ("partition", COUNT, "Without: all; with a key, the one that the default partitioner chooses."),
        ("from", TEXT, "earliest, latest (the newest records; the default), an offset, or an ISO 8601 time."),
        ("before", COUNT, "So many records before it."),
        ("limit", COUNT, "At most so many from there (default 50)."),
        ("key", TEXT, "Only records with this key."),
        ("key_hex", TEXT, "The same, as hex."),
        ("every_partition", {"enum": ["true", "false"]}, "Look for the key in all partitions."),
        ("isolation_level", {"enum": ["read_uncommitted", "read_committed"]}, "The default is read_uncommitted."),
        ("key_format", {"enum": list(PLAIN_FORMATS)}, "auto takes the format that the server has for the topic."),
        ("value_format", {"enum": list(PLAIN_FORMATS)}, "As key_format; text and hex are refused if masks apply."),
    )
)
REBALANCE_ID = {"name": "id", "in": "path", "required": True, "schema": COUNT}


def _answer(what: str, schema: str) -> Schema:
    return {"description": what, "content": {"application/json": {"schema": _ref(schema)}}}


def _get(summary: str, schema: str, *parameters: Schema, errors: tuple[int, ...] = (404,)) -> Schema:
    return {"get": _operation(summary, {"200": _answer("As of now.", schema)}, parameters, errors)}


def _post(summary: str, schema: str, body: Schema | None = None, *parameters: Schema) -> Schema:
    answer = {"200": _answer("Done.", schema)}
    operation = _operation(summary, answer, parameters or (GROUP,), (400, 401, 403, 404, 409, 415))
    operation["security"] = [{"token": []}]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"post": operation}


def _operation(summary: str, answers: Schema, parameters: tuple[Schema, ...], errors: tuple[int, ...]) -> Schema:
    meaning = {
        400: "The request is wrong.",
        401: "The token is missing or wrong.",
        403: "Read-only, not for this user, or asked by a page of another origin.",
        404: "No such group is known.",
        409: "Not possible as the group is now.",
        415: "The body is no JSON.",
        421: "The Host header does not name this server.",
        503: "Not well.",
    }
    # every address but those of health checks what it is called
    codes = errors if 503 in errors and 404 not in errors else (*errors, 421)
    refused = {str(code): _answer(meaning[code], "Health" if codes == (503,) else "Error") for code in codes}
    return {"summary": summary, "parameters": list(parameters), "responses": {**answers, **refused}}


def _text(summary: str, kind: str, *parameters: Schema, errors: tuple[int, ...] = ()) -> Schema:
    answer = {"description": "As of now.", "content": {kind: {"schema": TEXT}}}
    return {"get": _operation(summary, {"200": answer}, parameters, errors)}


def describe_api() -> dict[str, Any]:
    """A new copy of the description: the caller may change it."""
    watched = {"name": "group", "in": "query", "required": False, "schema": TEXT}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "allocator",
            "version": __version__,
            "description": "The groups, from `allocator web` and the web server of the daemon. Changes need a token.",
        },
        "paths": {
            "/api/groups": _get("All groups", "Overview"),
            "/api/topics": _get("The topics of the cluster, with the groups that read them", "Topics"),
            "/api/brokers": _get("The brokers of the cluster", "Brokers"),
            "/api/groups/{group}": _get("One group", "Group", GROUP),
            "/api/groups/{group}/partitions": _get("Offsets and owner of each partition", "Partitions", GROUP),
            "/api/groups/{group}/offsets": _get("Offsets, lag and rates, as columns for each topic", "Offsets", GROUP),
            "/api/groups/{group}/rebalances/{id}": _get(
                "One rebalance with all its moves", "RebalanceMoves", GROUP, REBALANCE_ID
            ),
            "/api/groups/{group}/history": _get(
                "Figures, rebalances and events between two times", "Past", GROUP, *TIMES, errors=(400, 404)
            ),
            "/api/deadletters": _get(
                "Topics that may have dead letters; for operators", "LetterTopics", errors=(401, 403)
            ),
            "/api/deadletters/{topic}/list": _post(
                "The dead letters that match", "Letters", _ref("LettersRequest"), TOPIC
            ),
            "/api/deadletters/{topic}/show": _post(
                "One letter with headers, stack, key and value", "LetterShown", _ref("LetterRequest"), TOPIC
            ),
            "/api/deadletters/{topic}/redrive": _post(
                "Write letters back to their topics", "Settled", _ref("SettleRequest"), TOPIC
            ),
            "/api/deadletters/{topic}/discard": _post(
                "Note that letters need nothing more", "Settled", _ref("SettleRequest"), TOPIC
            ),
            "/api/topics/{topic}/records": _get(
                "Records, decoded and masked", "Records", TOPIC, *RECORDS, errors=(400, 401, 403, 404, 503)
            ),
            "/api/topics/{topic}/records.jsonl": _text(
                "The same, whole, one JSON object a line",
                "application/x-ndjson",
                TOPIC,
                *RECORDS,
                errors=(400, 401, 403, 404, 503),
            ),
            "/api/audit": _get("The changes, and reads of masked records; for operators", "Changes", errors=(403, 404)),
            "/api/groups/{group}/rebalance": _post("Have the leader compute the assignment anew", "Asked"),
            "/api/groups/{group}/pause": _post("Have members that follow the group's setting leave", "Paused"),
            "/api/groups/{group}/resume": _post("Have them join again", "Paused"),
            "/api/groups/{group}/offsets/reset": _post("Replace committed offsets", "Reset", _ref("ResetRequest")),
            "/api/groups/{group}/offsets/copy": _post(
                "Commit the same offsets for another group", "Reset", _ref("CopyRequest")
            ),
            "/api/groups/{group}/orders/put": _post("Order the group something", "Ordered", _ref("NewOrder")),
            "/api/groups/{group}/orders/preview": _post("What an order would do", "OrderPreview", _ref("OrderRequest")),
            "/api/groups/{group}/orders/withdraw": _post(
                "Take orders back from some partitions", "Withdrawn", _ref("WithdrawRequest")
            ),
            "/api/groups/{group}/plan": _post(
                "What would move under suppositions and orders", "Plan", _ref("PlanRequest")
            ),
            "/api/groups/{group}/delete": _post("Delete a group without members", "Deleted", _ref("DeleteRequest")),
            "/api/groups/{group}/orders/remove": _post("Take orders back", "Removed", _ref("RemoveRequest")),
            "/api/groups/{group}/note": _post("Mark a deployment in the history", "Noted", _ref("NoteRequest")),
            "/api/events": _text(
                "Server-sent events: clock, overview, group, lag, loads, rebalances, findings, orders, events, series",
                "text/event-stream",
                watched,
                errors=(404, 503),
            ),
            "/api/openapi.json": {
                "get": {
                    "summary": "This description",
                    "responses": {
                        "200": {"description": "JSON.", "content": {"application/json": {"schema": {"type": "object"}}}}
                    },
                }
            },
            "/metrics": _text("For Prometheus", "text/plain"),
            "/health/live": _get("503: a restart helps", "Health", errors=(503,)),
            "/health/ready": _get("503: it does not do its work at present", "Health", errors=(503,)),
        },
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
