"""A model of transactions by partition: owners that take any step at any time, and requests that arrive late or never.

One partition with `INPUTS` records. An owner may begin, freeze and continue at any time: no rule of the model says
which owner is the right one, so the transactional id alone has to keep them apart. Three brokers have the state: the
coordinator of transactions, the leader of the results and the coordinator of the group. Each knows the epochs of the
requests and markers that it has got, so a broker without a marker of an epoch accepts late requests of the one before.
These are brokers before 3.6; later ones ask the coordinator of transactions first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

INPUTS, OWNERS, EPOCHS = 2, 2, 3
LATE = 1  # requests under way for which nobody waits
FENCES, COMPARES, APPLIED, REREADS, RESOLVES, RENEWS, ABORTS, WHOLE, ONLY = RULES = (
    "a new owner begins a new epoch",
    "the committed offset is compared once the new epoch has begun",
    "the comparison waits for offsets that are committed and not applied",
    "after a failure, also of the begin, the records in hand are read again",
    "after an unknown outcome, a new epoch and a comparison come first",
    "after a request without a response, a new epoch and a comparison come first",
    "a transaction with a request without a response is aborted by a new epoch",
    "a transaction with an offset request without a response is not committed",
    "each offset is committed in a transaction, from the first one on",
)
# `add` stands for AddPartitionsToTxn and AddOffsetsToTxn, which go to the same coordinator
AFTER = {"init": "compare", "add": "results", "results": "offset", "offset": "end", "end": "add", "abort": "init"}


class Request(NamedTuple):
    kind: str  # one of AFTER, or a `plain` commit
    epoch: int
    first: int = 0  # the record whose result it writes, or after which it commits


class Owner(NamedTuple):
    step: str = "off"  # what it does next: begin, compare, or one of AFTER
    asks: Optional[Request] = None  # the request that it waits for
    position: int = 0
    known: int = 0  # the committed offset that it knows
    epoch: int = -1
    doubt: bool = False  # a request of this epoch had no response
    offset_doubt: bool = False  # a commit of this transaction had none

    def but(self, **changes: Any) -> Owner:
        return self._replace(**changes)


class State(NamedTuple):
    epoch: int = 0  # at the coordinator of transactions
    active: bool = False  # whether a transaction is open there
    ended: str = ""  # how the last transaction of the epoch ended
    leader: int = 0  # the epoch that the leader of the results knows
    seen: frozenset[int] = frozenset()  # the records whose results the leader has got in this epoch
    open: frozenset[int] = frozenset()  # the results that no marker has ended
    group: int = 0  # the epoch that the coordinator of the group knows
    pending: Optional[int] = None  # the offset that no marker has ended
    committed: int = 0  # the offset that a fetch returns
    unapplied: Optional[int] = None  # an offset that is committed and not applied
    results: tuple[int, ...] = (0,) * INPUTS  # how many results of each record are committed
    owners: tuple[Owner, ...] = (Owner(),) * OWNERS
    late: frozenset[Request] = frozenset()

    def but(self, **changes: Any) -> State:
        return self._replace(**changes)


def unsafe(state: State) -> str:
    """The broken promise in this state, or ""."""
    if any(count > 1 for count in state.results):
        return "a record has two results"
    committed = state.committed if state.unapplied is None else state.unapplied
    if any(not count for count in state.results[:committed]):
        return "a record without a result is committed"
    if any(state.results[committed:]):
        return "a result is there before its record is committed"
    if not state.active and state.open:
        return "a result is open that no transaction ends, so readers of committed records stand still"
    if not state.active and state.pending is not None:
        return "an offset is pending that no transaction ends, so every new owner stands still"
    return ""


def steps(state: State, broken: str = "", late: int = LATE) -> Iterator[tuple[str, State]]:
    """The steps that may follow. `broken`: the rule that does not hold. `late`: how many requests may be late."""
    if state.unapplied is not None:
        yield "applied", state.but(committed=state.unapplied, unapplied=None)
    for request in state.late:
        yield f"late {request}", handled(state.but(late=state.late - {request}), request)[1]
    for at, owner in enumerate(state.owners):
        new = Owner("init", position=state.committed, known=state.committed)
        for after in forgotten(state, owner, late):
            yield f"{at} begins", changed(after, at, new)
            if broken == ONLY:  # it commits again what it knows, as for an idle partition
                plain = Request("plain", -1, state.committed)
                if len(after.late) < late and state.committed:
                    yield f"{at} begins and sends {plain}", changed(after.but(late=after.late | {plain}), at, new)
        if owner.asks is not None:
            accepted, after = handled(state, owner.asks, fences=broken != FENCES)
            yield f"{at} {owner.asks}", changed(after, at, answered(after, owner, accepted, broken))
            for after in forgotten(state, owner, late):
                yield f"{at} gives up {owner.asks}", changed(after, at, failed(owner, broken, no_response=True))
            if len(state.late) < late:
                again = state.but(late=state.late | {owner.asks})
                repeats = owner.but(doubt=True, offset_doubt=owner.offset_doubt or owner.asks.kind == "offset")
                yield f"{at} sends again {owner.asks}", changed(again, at, repeats)
        elif owner.step == "compare":
            if (state.unapplied is None and state.pending is None) or broken == APPLIED:
                found = owner.known if broken == COMPARES else state.committed
                position = owner.position if found == owner.known else found
                yield (f"{at} compares", changed(state, at, owner.but(step="add", position=position, known=found)))
        elif owner.step in AFTER and (state.epoch < EPOCHS if owner.step == "init" else owner.position < INPUTS):
            request = Request(owner.step, owner.epoch, owner.position)
            yield f"{at} sends {request}", changed(state, at, owner.but(asks=request))


def changed(state: State, at: int, owner: Owner) -> State:
    owners = [owner if each == at else old for each, old in enumerate(state.owners)]
    return state.but(owners=tuple(sorted(owners, key=hash)))  # the owners are alike, so their order says nothing


def forgotten(state: State, owner: Owner, late: int) -> Iterator[State]:
    """The request that the owner waits for is lost, or arrives later."""
    yield state
    if owner.asks is not None and len(state.late) < late:
        yield state.but(late=state.late | {owner.asks})


def failed(owner: Owner, broken: str, *, no_response: bool) -> Owner:
    assert owner.asks is not None
    position, kind = owner.position, owner.asks.kind
    if broken == REREADS:
        position = min(INPUTS, position + 1)
    step = "init"  # which also aborts the transaction
    if no_response and broken == RESOLVES and kind == "end":
        step = "add"
    elif no_response and broken == ABORTS and kind in ("results", "offset"):
        step = "abort"
    return owner.but(step=step, asks=None, position=position, doubt=owner.doubt or no_response)


def answered(state: State, owner: Owner, accepted: bool, broken: str) -> Owner:
    """The owner after the response."""
    assert owner.asks is not None
    if not accepted:
        return failed(owner, broken, no_response=False)
    kind = owner.asks.kind
    if kind == "init":
        return owner.but(step="compare", asks=None, epoch=state.epoch, doubt=False, offset_doubt=False)
    if kind == "offset" and owner.offset_doubt and broken != WHOLE:
        return owner.but(step="init", asks=None)
    if kind == "end":
        end = owner.position + 1
        step = "init" if owner.doubt and broken != RENEWS else "add"
        return owner.but(step=step, asks=None, position=end, known=end, offset_doubt=False)
    return owner.but(step=AFTER[kind], asks=None)


def handled(state: State, request: Request, *, fences: bool = True) -> tuple[bool, State]:
    """Whether the brokers accept the request, and the state afterwards."""
    kind, epoch, first = request
    if kind == "plain":
        return True, state.but(committed=first, unapplied=None)
    if kind == "results":  # the leader
        if epoch < state.leader:
            return False, state
        seen = state.seen if epoch == state.leader else frozenset()
        if first in seen:  # by its sequence number
            return True, state
        return True, state.but(leader=epoch, seen=seen | {first}, open=state.open | {first})
    if kind == "offset":  # the coordinator of the group
        if epoch < state.group:
            return False, state
        return True, state.but(group=epoch, pending=first + 1)
    if kind == "init":
        epoch = state.epoch + 1 if fences else max(state.epoch, 1)
        if state.active:  # the markers have the new epoch
            state = marked(state, epoch, commit=False)
        return True, state.but(epoch=epoch, ended="")
    if epoch != state.epoch:
        return False, state
    if kind == "add":
        return True, state.but(active=True, ended="")
    if not state.active:
        return state.ended == kind, state  # the end is repeated, or there is nothing to end
    return True, marked(state, epoch, commit=kind == "end").but(ended=kind)


def marked(state: State, epoch: int, *, commit: bool) -> State:
    """The leader and the coordinator of the group get markers."""
    results, unapplied = state.results, state.unapplied
    if commit:
        results = tuple(count + (number in state.open) for number, count in enumerate(results))
        unapplied = unapplied if state.pending is None else state.pending
    seen = state.seen if epoch == state.leader else frozenset[int]()
    return state.but(
        active=False,
        leader=epoch,
        seen=seen,
        open=frozenset(),
        group=epoch,
        pending=None,
        unapplied=unapplied,
        results=results,
    )
