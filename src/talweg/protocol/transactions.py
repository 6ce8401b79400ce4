"""Transactions: stage, decide, publish.

A writer stages batches at the leaders of partitions, where nobody reads them. One decision, in the partition
of an internal topic that the transaction's name leads to, says which stages count; the first one holds. Then
each of them is published at its leader, by whoever decided, or by a broker that sees it wait. All of these
calls may be repeated: done twice is done once. Publishing much takes long: who wants to hear how far it has
come says so in a header, which brokers that do not know it pass over.

    POST /v1/transactions                                       client → manager   → TransactionsReady
    POST /v1/topics/T/partitions/P/stages/S?transaction=N       client → leader    frames → Staged
    POST /v1/topics/T/partitions/P/stages/S/publish             client → leader    → Published
    POST /v1/topics/T/partitions/P/stages/S/discard             client → leader
    POST /v1/topics/__transactions/partitions/D/decisions       client → leader    Decide → Decided
    GET  /v1/topics/__transactions/partitions/D/decisions       client → leader    → DecisionAnswer
    POST /v1/topics/__transactions/partitions/D/decisions/expire     → leader      Expire → Expired
    POST /v1/topics/__transactions/partitions/D/decisions/complete   → leader      Complete

A stage's number S is any from 2**62 to 2**63 - 1, thrown as dice: one for each attempt of each writer in each
partition. Frames name it as their producer, with epoch -1 and their number in the stage as their sequence:
0, 1, 2. D is `decision_partition`.
"""

from typing import Annotated, Final

import msgspec
from crc32c import crc32c

from talweg.http.calls import Answer, Header, Natural, Parameters
from talweg.protocol.batches import PartitionPath

TRANSACTIONS: Final = "__transactions"  # the internal topic
STAGE_MIN: Final = 1 << 62
STAGE_MAX: Final = (1 << 63) - 1
DECISION_STAGES_MAX: Final = 50_000
COMPLETE_MAX: Final = 1_000
ANSWER_MS: Final = "Talweg-Answer-Ms"

StageNumber = Annotated[int, msgspec.Meta(ge=STAGE_MIN, le=STAGE_MAX)]
TransactionName = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


def decision_partition(transaction: str, partitions: int) -> int:
    """The partition of the internal topic that decides on a transaction.

    Names that differ only in a number behind their last slash go to one and the same, so that it knows the
    last ones of a series (`QUERY/17`) as such.
    """
    series, slash, number = transaction.rpartition("/")
    name = series if slash and number.isascii() and number.isdigit() else transaction
    return crc32c(name.encode()) % partitions


class TransactionsReady(Answer, frozen=True, kw_only=True):
    """The internal topic is there, with so many partitions."""

    partitions: Natural


class StagePath(PartitionPath, frozen=True, kw_only=True):
    """A stage of a partition."""

    stage: StageNumber


class StageItems(StagePath, frozen=True, kw_only=True):
    """A stage of a partition, and the transaction that it belongs to."""

    transaction: TransactionName


class PublishStage(StagePath, frozen=True, kw_only=True):
    """A stage, and after how long the answer may be that something of it is left. It is not given before
    something was published."""

    answer_ms: Annotated[Natural | None, Header(ANSWER_MS)] = None  # None: when all of it is published


class Staged(Answer, frozen=True, kw_only=True):
    """How many batches the stage holds now, these included."""

    items: Natural


class Published(Answer, frozen=True, kw_only=True):
    """So many messages of the stage are published, the first of them at this offset. If `complete`, these are
    all that there are."""

    count: Natural
    offset: Natural
    complete: bool = True


class StageRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stage, and where it is."""

    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
    partition: Natural
    stage: StageNumber


StageRefs = Annotated[list[StageRef], msgspec.Meta(max_length=DECISION_STAGES_MAX)]


class DecisionPath(Parameters, frozen=True, kw_only=True):
    """A partition of the internal topic."""

    partition: Natural


class AskDecision(DecisionPath, frozen=True, kw_only=True):
    """On which transaction."""

    transaction: TransactionName


class Decide(Parameters, frozen=True, kw_only=True):
    """These stages are published, and nothing else of that transaction."""

    transaction: TransactionName
    stages: StageRefs


class Decided(Answer, frozen=True, kw_only=True):
    """The decision that holds. Not `ours`: another was first, these stages are to be published, and those
    that were asked for are not. When it is `completed`, all of it is published, and `stages` is empty."""

    ours: bool
    completed: bool
    stages: tuple[StageRef, ...]


class DecisionAnswer(Answer, frozen=True, kw_only=True):
    """The decision on a transaction, if it is `decided`. When it is `completed`, all of it is published, and
    `stages` is empty."""

    decided: bool
    completed: bool = False
    stages: tuple[StageRef, ...] = ()


class Expire(Parameters, frozen=True, kw_only=True):
    """These stages can no longer be decided on, unless they were."""

    transaction: TransactionName
    stages: StageRefs


class Expired(Answer, frozen=True, kw_only=True):
    """Those that were decided on, and are to be published; all others may be discarded."""

    decided: tuple[StageRef, ...]


class Complete(Parameters, frozen=True, kw_only=True):
    """All that was decided on these is published."""

    transactions: Annotated[list[TransactionName], msgspec.Meta(max_length=COMPLETE_MAX)]
