"""Every error that Talweg raises for the world's mistakes, as one tree.

    TalwegError
    ├── BadRequest            the request itself is wrong; sending it again will not help
    │   ├── CorruptBatch      bytes that are not a batch, or no longer the batch they were
    │   │   └── Incomplete    a batch whose end has not arrived yet
    │   ├── BatchTooLarge     over a size limit, before or after decompression
    │   ├── OutOfSequence     a producer's sequence number leaves a gap, or its epoch is old
    │   ├── OffsetOutOfRange  below the log's start or above its end
    │   ├── BadTopicName      a topic cannot be called that
    │   ├── TooManyPartitions more than the brokers may carry
    │   ├── TooManyPositions  more consumers have a position in a partition than it keeps
    │   ├── BodyTooLarge      a request's body over the call's limit
    │   ├── BodyTooSlow       a request's body that did not arrive in time
    │   ├── UnsupportedMedia  a body in a media type that the call does not take
    │   ├── NotAcceptable     the call answers in none of the media types that were asked for
    │   └── MethodNotAllowed  the path is there, the method is not
    ├── InvalidSetting        a setting that cannot work; the process does not start
    ├── NotFound              there is no such thing
    │   ├── TopicNotFound
    │   │   └── TopicReplaced     it was deleted, and another one has taken its name
    │   ├── PartitionNotFound
    │   ├── ProducerNotFound  also: registered for another topic
    │   ├── ConsumerNotFound  also: registered for another topic
    │   ├── BrokerNotFound    a broker that hears this registers again
    │   ├── NoMessage         the consumer has read everything
    │   ├── StageNotFound     nothing is staged under that number, or it was settled long ago
    │   └── PathNotFound      no call has this path
    ├── Forbidden             it is not allowed from here, or not for that
    ├── NowhereToMove         no other broker could carry what this one does
    ├── TopicExists           the name is taken
    ├── StageExpired          a stage was discarded, or can no longer be decided on
    ├── StageDecided          a stage belongs to a decision or is being published: it cannot be discarded
    ├── TransactionForgotten  it was decided so long ago that the decision is no longer known
    ├── StaleVersion          it was changed by another since it was read; read it and try again
    ├── Unavailable           the cluster cannot do it now; try again
    │   ├── NotLeader         another replica leads; names it when known
    │   ├── GroupNotFound     this broker carries no such group, or another incarnation of it
    │   ├── NoQuorum          no majority could be reached
    │   ├── Undecided         it may have been done or not; a retry with the same sequence finds out
    │   ├── Overloaded        too much is under way already: back-pressure
    │   ├── StorageFull       no space left on the disk: reads go on, writes are refused
    │   ├── TooFewBrokers     fewer active brokers than replicas
    │   ├── MetadataUnavailable  the metadata store cannot be reached, or has not confirmed a change
    │   ├── LeaseLost         this manager is no longer the primary
    │   ├── Unreachable       no connection could be made: the request was never sent
    │   └── Closed            a client that was closed, a transaction that is over: no use to try again
    ├── DeliveryFailed        a producer could not deliver what it had accepted; says how much, and why
    ├── StorageError          the disk failed
    │   ├── DamagedLog        bytes in the middle of a log are not what was written
    │   └── NewerFormat       written by a newer version of Talweg
    ├── PipelineFailed        a pipeline's query on Spark ended with an error
    └── Internal              a mistake of ours; the server's own log has the trace

Callers branch on the class, `code` or `retriable`, never on the text.
"""

from collections.abc import Iterator
from typing import Any, ClassVar


class TalwegError(Exception):
    """The root: what it is called on the wire, its HTTP status, and whether to try again."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    # When it ends a producer's `send_many` or `send_arrow`: how many messages were accepted before, and those
    # that were not, as an Arrow table to be sent.
    accepted: int | None = None
    rest: Any = None

    # Of an answer without a code, or without sense: whoever gave it may be no server of ours.
    unexplained: bool = False


class BadRequest(TalwegError):
    """The request itself is wrong."""

    code = "bad_request"
    status = 400


class CorruptBatch(BadRequest):
    """Bytes that are not a batch, or no longer the batch they were."""

    code = "corrupt_batch"


class Incomplete(CorruptBatch):
    """The bytes are right so far, but the batch's end is missing."""

    code = "incomplete_batch"


class BatchTooLarge(BadRequest):
    """Over a size limit, before or after decompression."""

    code = "batch_too_large"
    status = 413


class OutOfSequence(BadRequest):
    """A producer's sequence number leaves a gap, or its epoch has been superseded."""

    code = "out_of_sequence"
    status = 409


class OffsetOutOfRange(BadRequest):
    """The offset is below the log's start (retention) or above its end."""

    code = "offset_out_of_range"
    status = 416


class BadTopicName(BadRequest):
    """A topic cannot be called that; the message says what it can be called."""

    code = "bad_topic_name"


class TooManyPartitions(BadRequest):
    """More partitions than the brokers may carry."""

    code = "too_many_partitions"
    status = 409


class TooManyPositions(BadRequest):
    """More consumers have a position in a partition than it keeps: delete those that read no more."""

    code = "too_many_positions"
    status = 409


class BodyTooLarge(BadRequest):
    """A request's body is over the limit of the call."""

    code = "body_too_large"
    status = 413


class BodyTooSlow(BadRequest):
    """A request's body did not arrive in time."""

    code = "body_too_slow"
    status = 408
    retriable = True


class UnsupportedMedia(BadRequest):
    """The call does not take a body of this media type; the message says which ones it takes."""

    code = "unsupported_media"
    status = 415


class NotAcceptable(BadRequest):
    """The call answers in none of the media types that were asked for."""

    code = "not_acceptable"
    status = 406


class MethodNotAllowed(BadRequest):
    """The path is there, the method is not. `allowed` names those that are."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, message: str, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class InvalidSetting(TalwegError):
    """A setting that cannot work: the message names it and says what was expected."""

    code = "invalid_setting"
    status = 400


class NotFound(TalwegError):
    """There is no such thing."""

    code = "not_found"
    status = 404


class TopicNotFound(NotFound):
    """No topic of that name."""

    code = "topic_not_found"


class TopicReplaced(TopicNotFound):
    """The topic that was meant is no more, and another one has its name: offsets of the old mean nothing."""

    code = "topic_replaced"


class PartitionNotFound(NotFound):
    """The topic has no partition of that number."""

    code = "partition_not_found"


class ProducerNotFound(NotFound):
    """No producer of that number, or one of another topic."""

    code = "producer_not_found"


class ConsumerNotFound(NotFound):
    """No consumer of that number, or one of another topic."""

    code = "consumer_not_found"


class BrokerNotFound(NotFound):
    """No broker of that number. A broker that hears this registers again."""

    code = "broker_not_found"


class NoMessage(NotFound):
    """The consumer has read everything there is. More may come."""

    code = "no_message"
    retriable = True


class StageNotFound(NotFound):
    """Nothing is staged under that number here: it never was, or it was settled long ago.

    Whoever publishes what a decision names may take it as done: only what was staged is decided on, and
    what is decided on is only ever published.
    """

    code = "stage_not_found"


class PathNotFound(NotFound):
    """No call has this path."""

    code = "path_not_found"


class Forbidden(TalwegError):
    """It is not allowed: the message says what would be."""

    code = "forbidden"
    status = 403


class NowhereToMove(TalwegError):
    """No other broker could carry what this one does."""

    code = "nowhere_to_move"
    status = 409
    retriable = True


class TopicExists(TalwegError):
    """There is a topic of that name already."""

    code = "topic_exists"
    status = 409


class StageExpired(TalwegError):
    """The stage was discarded, or noted as expired, before anybody decided on it. Stage it anew."""

    code = "stage_expired"
    status = 409


class StageDecided(TalwegError):
    """The stage belongs to a decision, or is being published: it cannot be discarded any more."""

    code = "stage_decided"
    status = 409


class TransactionForgotten(TalwegError):
    """Later transactions of the same series are so many that this one's decision is no longer known."""

    code = "transaction_forgotten"
    status = 409


class StaleVersion(TalwegError):
    """It was changed by another since it was read. Read it, decide anew and try again."""

    code = "stale_version"
    status = 409
    retriable = True


class Unavailable(TalwegError):
    """The cluster cannot do it now. Trying again is right."""

    code = "unavailable"
    status = 503
    retriable = True


class NotLeader(Unavailable):
    """Another replica leads this group. `leader` is its id, and `endpoint` its URL, when they are known."""

    code = "not_leader"
    status = 421

    def __init__(self, message: str, leader: int | None = None, endpoint: str | None = None) -> None:
        super().__init__(message)
        self.leader = leader
        self.endpoint = endpoint


class GroupNotFound(Unavailable):
    """No such group here, or another incarnation of it. Another broker may have it, or this one later."""

    code = "group_not_found"
    status = 404


class NoQuorum(Unavailable):
    """No majority of the group could be reached."""

    code = "no_quorum"


class Undecided(Unavailable):
    """Leadership was lost, or no answer came: it may have been done or not.

    Sent again with the same producer and sequence it is written once, whichever it was.
    """

    code = "undecided"


class Overloaded(Unavailable):
    """Too much is under way already. Slow down and try again."""

    code = "overloaded"


class StorageFull(Unavailable):
    """No space left on the disk: reads go on, writes are refused until there is space."""

    code = "storage_full"


class TooFewBrokers(Unavailable):
    """There are fewer active brokers than a partition is to have replicas."""

    code = "too_few_brokers"


class MetadataUnavailable(Unavailable):
    """The metadata store cannot be reached, or has not confirmed a change: it may have happened or not."""

    code = "metadata_unavailable"


class LeaseLost(Unavailable):
    """This manager is no longer the primary: nothing was written. Whoever is will do it."""

    code = "lease_lost"


class Unreachable(Unavailable):
    """No connection could be made. The request was never sent, so asking another, or again, is safe."""

    code = "unreachable"


class Closed(Unavailable):
    """A client that was closed, or made before a fork; a transaction that is over. Make another.

    Unavailable to those who ask by class, and the only one of them that is not retriable: it stays so.
    """

    code = "closed"
    status = 410
    retriable = False


class DeliveryFailed(TalwegError):
    """A producer could not deliver `count` messages that it had accepted; `first` says why."""

    code = "delivery_failed"

    def __init__(self, message: str, count: int = 0, first: TalwegError | None = None) -> None:
        super().__init__(message)
        self.count = count
        self.first = first


class StorageError(TalwegError):
    """The disk or the database failed."""

    code = "storage_error"


class DamagedLog(StorageError):
    """Bytes in the middle of a log are not what was written. Never cut silently."""

    code = "damaged_log"


class NewerFormat(StorageError):
    """Written by a newer version of Talweg than this one."""

    code = "newer_format"


class PipelineFailed(TalwegError):
    """A pipeline's query on Spark ended with an error: the message says which, and why."""

    code = "pipeline_failed"


class Internal(TalwegError):
    """A mistake of ours. Whoever asked learns no more; the server's own log has the trace."""

    code = "internal"


def error_named(code: str) -> type[TalwegError]:
    """The class that goes by a code on the wire; TalwegError itself for one that is not known here."""
    return next((kind for kind in _tree(TalwegError) if kind.code == code), TalwegError)


def _tree(root: type[TalwegError]) -> Iterator[type[TalwegError]]:
    yield root
    for below in root.__subclasses__():
        yield from _tree(below)
