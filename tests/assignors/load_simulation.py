"""A day of a group that follows load, in virtual time: Zipf's sizes, daily curves, noise, and the leader's code."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from allocator.assignors.load import balance, moved
from allocator.assignors.load_report import Mean
from allocator.assignors.types import Member
from allocator.protocols.zookeeper.znodes.following import ImbalanceTimer, LoadHistory
from allocator.types import TopicPartition

DAY_S = 86_400


@dataclass(frozen=True)
class Workload:
    """Partition sizes by Zipf's law with exponent `skew`; each topic has a daily curve with its own peak hour."""

    members: int = 100
    partitions: int = 10_000
    skew: float = 0.8
    topics: int = 8
    swing: float = 0.5
    noise: float = 0.3
    seed: int = 1

    def rates(self):
        rng = random.Random(self.seed)
        sizes = [1 / (rank + 1) ** self.skew for rank in range(self.partitions)]
        rng.shuffle(sizes)
        per_topic = self.partitions // self.topics
        names = [TopicPartition(f"t{n // per_topic}", n % per_topic) for n in range(per_topic * self.topics)]
        phases = [2 * math.pi * rng.random() for _ in range(self.topics)]
        return names, dict(zip(names, sizes)), phases

    def curve(self, phase, now_s):
        return 1 + self.swing * math.sin(2 * math.pi * now_s / DAY_S + phase)


@dataclass
class Outcome:
    ratios: list = field(default_factory=list)  # max/mean
    bounds: list = field(default_factory=list)  # max / max(mean, heaviest partition)
    static: list = field(default_factory=list)  # max/mean had nothing moved
    moves: list = field(default_factory=list)  # (second, LoadMove)


def run(workload: Workload, hours=24.0, tick_s=60, tolerance=1.1) -> Outcome:
    rng = random.Random(workload.seed + 1)
    names, sizes, phases = workload.rates()
    members = [Member(f"m{n:03}", "m", frozenset(name.topic for name in names)) for n in range(workload.members)]
    owners = {m.id: frozenset(names[n :: workload.members]) for n, m in enumerate(members)}
    at_first = dict(owners)
    means = {name: Mean() for name in names}
    known = {}
    noise = [rng.lognormvariate(0, workload.noise * (60 / tick_s) ** 0.5) for _ in range(4096)]
    random_ = rng.random
    timer, history, outcome = ImbalanceTimer(), LoadHistory(), Outcome()
    for step in range(int(hours * 3600 / tick_s)):
        now_s = step * tick_s
        curves = [workload.curve(each, now_s) for each in phases]
        rate = {name: sizes[name] * curves[int(name.topic[1:])] for name in names}
        for name in names:
            measured = means[name]
            measured.add(rate[name] * noise[int(random_() * 4096)], tick_s)
            if measured.seconds >= 60:
                known[name] = measured.value
        found = {member: sum(map(rate.__getitem__, parts)) for member, parts in owners.items()}
        mean, most_loaded = sum(found.values()) / len(found), max(found.values())
        outcome.ratios.append(most_loaded / mean)
        outcome.bounds.append(most_loaded / max(mean, max(rate.values())))
        if step % 6 == 0:
            outcome.static.append(max(sum(map(rate.__getitem__, parts)) for parts in at_first.values()) / mean)
        now_ms = now_s * 1000
        moves = balance(
            members,
            owners,
            known,
            tolerance=tolerance,
            resting=history.resting(now_ms),
            most=history.allowance(len(names), now_ms),
        )
        if timer.lasting(bool(moves), now_s):
            owners = moved(owners, moves)
            history = history.with_moves((move.partition for move in moves), len(names), now_ms)
            outcome.moves += [(now_s, move) for move in moves]
            for move in moves:
                means[move.partition] = Mean()
    return outcome
