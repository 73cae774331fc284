"""A model of transactions by partition: owners that take any step at any time, and requests that arrive late or never.

One partition with `INPUTS` records. An owner may begin, freeze and continue at any time: no rule of the model says
which owner is the right one, so the transactional id alone has to keep them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

INPUTS, OWNERS, EPOCHS = 2, 2, 3
LATE = 1  # requests under way for which nobody waits
FENCES, COMPARES, APPLIED, REREADS, RESOLVES, RENEWS = RULES = (
    "a new owner begins a new epoch",
    "the committed offset is compared once the new epoch has begun",
    "the comparison waits for offsets that are committed and not applied",
    "after a failure, the records in hand are read again",
    "after an unknown outcome, a new epoch and a comparison come first",
    "after a request without a response, a new epoch and a comparison come first",
)
AFTER = {"init": "compare", "results": "offset", "offset": "end", "end": "results"}


class Request(NamedTuple):
    kind: str  # one of AFTER
    epoch: int
    first: int = 0  # the record whose result it writes, or after which it commits


class Owner(NamedTuple):
    step: str = "off"  # what it does next: begin, compare, or one of AFTER
    asks: Optional[Request] = None  # the request that it waits for
    position: int = 0
    known: int = 0  # the committed offset that it knows
    epoch: int = -1
    doubt: bool = False  # a request of this epoch had no response


class State(NamedTuple):
    epoch: int = 0
    seen: frozenset[int] = frozenset()  # the records whose results the leader has got in this epoch
    open: frozenset[int] = frozenset()  # the results of the open transaction
    pending: Optional[int] = None  # its offset
    ended: bool = False  # whether the last transaction of the epoch was committed
    committed: int = 0  # the offset that a fetch returns
    unapplied: Optional[int] = None  # an offset that is committed and not applied
    results: tuple[int, ...] = (0,) * INPUTS  # how many results of each record are committed
    owners: tuple[Owner, ...] = (Owner(),) * OWNERS
    late: frozenset[Request] = frozenset()


def unsafe(state: State) -> str:
    """The broken promise in this state, or ""."""
    if any(count > 1 for count in state.results):
        return "a record has two results"
    committed = state.committed if state.unapplied is None else state.unapplied
    if any(not count for count in state.results[:committed]):
        return "a record without a result is committed"
    if any(state.results[committed:]):
        return "a result is there before its record is committed"
    return ""


def steps(state: State, broken: str = "") -> Iterator[tuple[str, State]]:
    """The steps that may follow. `broken`: the rule that does not hold."""
    if state.unapplied is not None:
        yield "applied", state._replace(committed=state.unapplied, unapplied=None)
    for request in state.late:
        yield f"late {request}", handled(state._replace(late=state.late - {request}), request)[1]
    for at, owner in enumerate(state.owners):
        new = Owner("init", position=state.committed, known=state.committed)
        for after in forgotten(state, owner):
            yield f"{at} begins", changed(after, at, new)
        if owner.asks is not None:
            accepted, after = handled(state, owner.asks, fences=broken != FENCES)
            yield f"{at} {owner.asks}", changed(after, at, answered(after, owner, accepted, broken))
            for after in forgotten(state, owner):
                yield f"{at} gives up {owner.asks}", changed(after, at, failed(owner, broken, no_response=True))
            if len(state.late) < LATE:
                again = state._replace(late=state.late | {owner.asks})
                yield f"{at} sends again {owner.asks}", changed(again, at, owner._replace(doubt=True))
        elif owner.step == "compare":
            if state.unapplied is None or broken == APPLIED:
                found = owner.known if broken == COMPARES else state.committed
                position = owner.position if found == owner.known else found
                yield (
                    f"{at} compares",
                    changed(state, at, owner._replace(step="results", position=position, known=found)),
                )
        elif owner.step in AFTER and (state.epoch < EPOCHS if owner.step == "init" else owner.position < INPUTS):
            request = Request(owner.step, owner.epoch, owner.position)
            yield f"{at} sends {request}", changed(state, at, owner._replace(asks=request))


def changed(state: State, at: int, owner: Owner) -> State:
    owners = [owner if each == at else old for each, old in enumerate(state.owners)]
    return state._replace(owners=tuple(sorted(owners, key=hash)))  # the owners are alike, so their order says nothing


def forgotten(state: State, owner: Owner) -> Iterator[State]:
    """The request that the owner waits for is lost, or arrives later."""
    yield state
    if owner.asks is not None and len(state.late) < LATE:
        yield state._replace(late=state.late | {owner.asks})


def failed(owner: Owner, broken: str, *, no_response: bool) -> Owner:
    assert owner.asks is not None
    position = owner.position
    if broken == REREADS and owner.asks.kind != "init":
        position = min(INPUTS, position + 1)
    goes_on = broken == RESOLVES and no_response and owner.asks.kind == "end"
    return owner._replace(step="results" if goes_on else "init", asks=None, position=position)


def answered(state: State, owner: Owner, accepted: bool, broken: str) -> Owner:
    """The owner after the response."""
    assert owner.asks is not None
    if not accepted:
        return failed(owner, broken, no_response=False)
    kind = owner.asks.kind
    if kind == "init":
        return owner._replace(step="compare", asks=None, epoch=state.epoch, doubt=False)
    if kind == "end":
        end = owner.position + 1
        step = "init" if owner.doubt and broken != RENEWS else "results"
        return owner._replace(step=step, asks=None, position=end, known=end)
    return owner._replace(step=AFTER[kind], asks=None)


def handled(state: State, request: Request, *, fences: bool = True) -> tuple[bool, State]:
    """Whether the coordinator and the leader accept the request, and the state afterwards."""
    kind, epoch, first = request
    if kind == "init":  # aborts the open transaction
        epoch = state.epoch + 1 if fences else max(state.epoch, 1)
        return True, state._replace(epoch=epoch, seen=frozenset(), open=frozenset(), pending=None, ended=False)
    if epoch != state.epoch:
        return False, state
    if kind == "results":
        if first in state.seen:  # by its sequence number
            return True, state
        return True, state._replace(seen=state.seen | {first}, open=state.open | {first}, ended=False)
    if kind == "offset":
        return True, state._replace(pending=first + 1, ended=False)
    if not state.open and state.pending is None:
        return state.ended, state  # the commit is repeated, or there is nothing to commit
    results = tuple(count + (number in state.open) for number, count in enumerate(state.results))
    unapplied = state.unapplied if state.pending is None else state.pending
    return True, state._replace(open=frozenset(), pending=None, ended=True, unapplied=unapplied, results=results)
