"""Decisions on transactions: which stages are published, once and for all.

They live in the partitions of an internal topic, each in the one that its name leads to. The first decision
on a name holds; whoever decides later is told that one. Pure: folded over the log like the rest of a
partition's small state (`state`).

What is forgotten, and why that is safe. A decision is *open* until all its stages are known to be published
and it is *completed*; an open one is never forgotten, and when there are too many, new ones are refused. Of
completed ones only the fact is kept, to answer whoever asks again:

- a name that ends in a slash and a number (`QUERY/17`) belongs to a *series*. Of each series the last few
  are kept, so that a query that was down for a year still finds its last one. An older number is refused
  (TransactionForgotten), never taken for a new one. Only when there are very many series, the one that
  was silent longest is forgotten as a whole;
- of other names, the last ten thousand. Their owners, who are clients that are still there, ask at once.

A stage that nobody decided on in time is noted as *expired*, and a later decision that names it is refused.
The note goes when its transaction is decided on; of transactions that never are, the newest notes are kept.
"""

import hashlib
from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from talweg.errors import CorruptBatch, Overloaded, StageExpired, TransactionForgotten
from talweg.records import HEADER_BYTES, Kind, encode_frame, read_header

OPEN_MAX: Final = 10_000  # decisions of a partition that are not completed; more are refused
OPEN_STAGES_MAX: Final = 200_000  # that those name; more are refused
SERIES_KEPT: Final = 16  # completed decisions of a series that are known
SERIES_MAX: Final = 10_000  # of a partition
SINGLES_MAX: Final = 10_000  # completed decisions whose names are in no series
EXPIRED_MAX: Final = 100_000  # stages noted as expired, of transactions that were not decided on
_NUMBER_DIGITS_MAX: Final = 18  # so that it fits into 64 bits


class StagePlace(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """A stage, and where it is."""

    topic: str
    partition: int
    stage: int


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """These stages are published, and nothing else of that transaction."""

    decided_us: int
    digest: bytes  # of the stages
    stages: tuple[StagePlace, ...]  # let go of when it is completed
    completed: bool = False


class Series(msgspec.Struct, frozen=True, array_like=True):
    """Transactions that follow each other."""

    # Of decisions that are known, as they were decided: open ones, and the last few.
    numbers: tuple[int, ...] = ()
    forgotten_to: int = -1  # the greatest number whose decision was forgotten; open ones may be below it


class Decide(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Entry: this is the decision, unless there is one."""

    transaction: str
    stages: tuple[StagePlace, ...]
    decided_us: int


class Expire(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Entry: these can no longer be decided on, unless that was done."""

    transaction: str
    stages: tuple[StagePlace, ...]


class Complete(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Entry: everything that these decided is published."""

    transactions: tuple[str, ...]


Ruling = Decide | Expire | Complete


class StoredDecisions(msgspec.Struct, frozen=True, array_like=True):
    """All of it, for a snapshot."""

    decisions: list[tuple[str, Decision]] = []  # in order, like all of these: it says what goes first
    series: list[tuple[str, Series]] = []
    singles: list[str] = []
    expired: list[tuple[str, tuple[StagePlace, ...]]] = []


class Decisions:
    """Those that one partition of the internal topic keeps."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}  # by transaction, as they were decided
        self._open: dict[str, None] = {}  # those not completed, as they were decided
        self._open_stages = 0
        self._series: dict[str, Series] = {}  # the longest silent one first
        self._singles: dict[str, None] = {}  # completed ones in no series, as they were completed
        # By transaction, the first noted first; so are the stages of each.
        self._expired: dict[str, dict[StagePlace, None]] = {}
        self._expired_stages = 0

    # What a leader asks before it puts something into the log

    def is_known(self, ruling: Ruling) -> bool:
        """Whether it would change nothing. Raises what forbids it."""
        if isinstance(ruling, Complete):
            return not any(name in self._open for name in ruling.transactions)
        decided = ruling.transaction in self.decisions
        if isinstance(ruling, Expire):
            # One that was forgotten had been completed: nothing of it waits for anything.
            noted = self._expired.get(ruling.transaction, {})
            return (
                decided
                or self._is_forgotten(ruling.transaction)
                or all(place in noted for place in ruling.stages)
            )
        if not decided:
            self._check_new(ruling)
        return decided

    def _check_new(self, decide: Decide) -> None:
        name = decide.transaction
        if self._is_forgotten(name):
            raise TransactionForgotten(
                f"transaction {name} is older than the last {SERIES_KEPT} of its series: "
                "whether it was decided on is no longer known"
            )
        noted = self._expired.get(name, {})
        expired = [place for place in decide.stages if place in noted]
        if expired:
            one = min(expired)
            raise StageExpired(
                f"stage {one.stage} of partition {one.partition} of topic {one.topic} has expired: "
                f"transaction {name} must be staged anew"
            )
        stages = self._open_stages + len(decide.stages)
        if len(self._open) >= OPEN_MAX or (self._open and stages > OPEN_STAGES_MAX):
            raise Overloaded(f"{len(self._open)} decisions wait to be published; try again in a while")

    def _is_forgotten(self, name: str) -> bool:
        series, number = split_name(name)
        return (
            number is not None
            and number <= self._series.get(series, Series()).forgotten_to
            and name not in self.decisions
        )

    def check_known(self, name: str) -> None:
        """Raise TransactionForgotten if nobody can say any more whether it was decided on."""
        if self._is_forgotten(name):
            raise TransactionForgotten(f"the decision on transaction {name} was taken long ago, if it was")

    # What every replica does

    def add(self, ruling: Ruling) -> None:
        """Fold an entry."""
        if isinstance(ruling, Complete):
            for name in ruling.transactions:
                self._complete(name)
        elif ruling.transaction in self.decisions:
            return  # the first one holds
        elif isinstance(ruling, Decide):
            self._decide(ruling)
        else:
            self._note_expired(ruling)

    def _decide(self, decide: Decide) -> None:
        name = decide.transaction
        self._drop_notes(name)
        decision = Decision(decide.decided_us, digest(decide.stages), decide.stages)
        self.decisions[name] = decision
        self._open[name] = None
        self._open_stages += len(decision.stages)
        series, number = split_name(name)
        if number is not None:
            before = self._series.pop(series, Series())  # popped: it moves to the end
            self._series[series] = Series((*before.numbers, number), before.forgotten_to)
            self._forget_silent_series()

    def _complete(self, name: str) -> None:
        if name not in self._open:
            return
        del self._open[name]
        decision = self.decisions[name]
        self._open_stages -= len(decision.stages)
        self.decisions[name] = Decision(decision.decided_us, decision.digest, (), completed=True)
        series, number = split_name(name)
        if number is not None:
            self._forget_old_of(series)
            return
        self._singles[name] = None
        if len(self._singles) > SINGLES_MAX:
            oldest = next(iter(self._singles))
            del self._singles[oldest], self.decisions[oldest]

    def _forget_old_of(self, name: str) -> None:
        series = self._series[name]
        if len(series.numbers) <= SERIES_KEPT:
            return
        # An open one stays, however old it is; those that came after it do not wait for that.
        old, kept = series.numbers[:-SERIES_KEPT], series.numbers[-SERIES_KEPT:]
        still_open = tuple(number for number in old if not self.decisions[f"{name}/{number}"].completed)
        forgotten = set(old).difference(still_open)
        for number in forgotten:
            del self.decisions[f"{name}/{number}"]
        forgotten_to = max(forgotten, default=series.forgotten_to)
        self._series[name] = Series((*still_open, *kept), max(series.forgotten_to, forgotten_to))

    def _forget_silent_series(self) -> None:
        if len(self._series) <= SERIES_MAX:
            return
        for name, series in self._series.items():  # open decisions are few, so this soon finds one
            members = [f"{name}/{number}" for number in series.numbers]
            if all(self.decisions[member].completed for member in members):
                for member in members:
                    del self.decisions[member]
                del self._series[name]
                return

    def _note_expired(self, expire: Expire) -> None:
        noted = self._expired.setdefault(expire.transaction, {})
        before = len(noted)
        noted.update(dict.fromkeys(expire.stages))
        self._expired_stages += len(noted) - before
        while self._expired_stages > EXPIRED_MAX:
            self._drop_oldest_notes(self._expired_stages - EXPIRED_MAX)

    def _drop_oldest_notes(self, count: int) -> None:
        """So many, if the first transaction has them. It may be the only one, whose tasks go on failing."""
        name, noted = next(iter(self._expired.items()))
        for place in list(islice(noted, count)):
            del noted[place]
            self._expired_stages -= 1
        if not noted:
            del self._expired[name]

    def _drop_notes(self, name: str) -> None:
        self._expired_stages -= len(self._expired.pop(name, {}))

    # What is asked of it

    def open_since(self, before_us: int) -> dict[str, Decision]:
        """Decisions that were taken before and are not completed, oldest first."""
        return {
            name: decision
            for name in self._open
            if (decision := self.decisions[name]).decided_us <= before_us
        }

    def decided_among(self, name: str, stages: Iterable[StagePlace]) -> list[StagePlace]:
        """Those of these stages that an open decision on the transaction names."""
        decision = self.decisions.get(name)
        decided = set() if decision is None else set(decision.stages)
        return [place for place in stages if place in decided]

    # Copies and snapshots

    def copy(self) -> "Decisions":
        """One that can be folded further without touching this one."""
        return Decisions.from_stored(self.to_stored())

    def to_stored(self) -> StoredDecisions:
        """For a snapshot. Equal states give equal values."""
        return StoredDecisions(
            list(self.decisions.items()),
            list(self._series.items()),
            list(self._singles),
            [(name, tuple(noted)) for name, noted in self._expired.items()],
        )

    @classmethod
    def from_stored(cls, stored: StoredDecisions) -> "Decisions":
        """Read back what `to_stored` gave."""
        made = cls()
        made.decisions = dict(stored.decisions)
        made._open = {name: None for name, decision in stored.decisions if not decision.completed}
        made._open_stages = sum(len(decision.stages) for _, decision in stored.decisions)
        made._series = dict(stored.series)
        made._singles = dict.fromkeys(stored.singles)
        made._expired = {name: dict.fromkeys(places) for name, places in stored.expired}
        made._expired_stages = sum(len(places) for _, places in stored.expired)
        return made


def split_name(name: str) -> tuple[str, int | None]:
    """A transaction's series and its number there; the name itself and None if it is in none.

    Only a number written as we would write it counts: `7`, but neither `07` nor `+7`.
    """
    series, slash, last = name.rpartition("/")
    if slash and last.isascii() and last.isdigit() and len(last) <= _NUMBER_DIGITS_MAX:
        number = int(last)
        if str(number) == last:
            return series, number
    return name, None


def digest(stages: Iterable[StagePlace]) -> bytes:
    """Tells decisions apart whose stages were let go of. Their order does not matter."""
    return hashlib.blake2b(msgspec.msgpack.encode(sorted(stages)), digest_size=16).digest()


def encode_ruling(ruling: Ruling) -> bytes:
    """The entry."""
    return encode_frame(Kind.DECISION, msgspec.msgpack.encode(ruling))


def decode_ruling(frame: bytes) -> Ruling:
    """Read back what `encode_ruling` wrote."""
    header = read_header(frame)
    body = frame[HEADER_BYTES : HEADER_BYTES + header.body_bytes]
    try:
        return msgspec.msgpack.decode(body, type=Ruling)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"the decision at index {header.index} cannot be read: {error}") from error
