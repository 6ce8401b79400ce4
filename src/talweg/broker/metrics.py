"""What a broker says of itself at `/metrics`: what it carries and leads, and who has read how far there."""

from typing import Final

from talweg.broker.hosting import Hosting, is_ready
from talweg.broker.partition import Partition
from talweg.http import Metric, Samples, single
from talweg.replication import Replica

# Of positions that are shown. Who comes and goes under new names all the time must not fill Prometheus.
POSITIONS_MAX: Final = 10_000

_OF_PARTITION: Final = ("topic", "partition")
_OF_CONSUMER: Final = ("consumer", *_OF_PARTITION)

REGISTERED: Final = Metric(
    "talweg_broker_registered", "gauge", "1 once a manager has given this broker its number."
)
CARRIED: Final = Metric("talweg_broker_partitions", "gauge", "Partitions of which this broker has a replica.")
LED: Final = Metric("talweg_broker_partitions_led", "gauge", "Partitions that this broker leads.")
LEADER: Final = Metric(
    "talweg_partition_leader", "gauge", "1 if this broker leads the partition, else 0.", _OF_PARTITION
)
TERM: Final = Metric("talweg_partition_term", "gauge", "The term, as this replica knows it.", _OF_PARTITION)
LOG_BYTES: Final = Metric(
    "talweg_partition_log_bytes",
    "gauge",
    "Bytes of the log that this replica keeps; not with a database as storage.",
    _OF_PARTITION,
)
START_OFFSET: Final = Metric(
    "talweg_partition_start_offset", "gauge", "The first offset that is kept.", _OF_PARTITION
)
NEXT_OFFSET: Final = Metric(
    "talweg_partition_next_offset", "gauge", "The first offset that is not committed.", _OF_PARTITION
)
REPLICAS: Final = Metric("talweg_partition_replicas", "gauge", "Replicas that vote.", _OF_PARTITION)
CAUGHT_UP: Final = Metric(
    "talweg_partition_replicas_caught_up",
    "gauge",
    "Those of them that answer and have the end of the log, the leader included.",
    _OF_PARTITION,
)
POSITION: Final = Metric(
    "talweg_consumer_position", "gauge", "The first offset that the consumer has not read.", _OF_CONSUMER
)
LAG: Final = Metric(
    "talweg_consumer_lag", "gauge", "Messages that are kept and that it has not read.", _OF_CONSUMER
)
HOLD_BYTES: Final = Metric(
    "talweg_consumer_hold_bytes",
    "gauge",
    "Up to which size of the log retention waits for it; only of consumers with a hold.",
    _OF_CONSUMER,
)
OVERTAKEN: Final = Metric(
    "talweg_consumer_overtaken",
    "gauge",
    "1 if retention has dropped what a consumer with a hold has not read, else 0.",
    _OF_CONSUMER,
)
LEFT_OUT: Final = Metric(
    "talweg_consumer_positions_left_out", "gauge", f"Positions beyond {POSITIONS_MAX:,}, which are not shown."
)

BROKER_METRICS: Final = (
    REGISTERED, CARRIED, LED, LEADER, TERM, LOG_BYTES, START_OFFSET, NEXT_OFFSET, REPLICAS, CAUGHT_UP,
    POSITION, LAG, HOLD_BYTES, OVERTAKEN, LEFT_OUT,
)  # fmt: skip


class BrokerLook:
    """What is seen at one moment."""

    def __init__(self, hosting: Hosting | None) -> None:
        """`hosting` is None for a broker that is not registered yet."""
        self._samples = {metric.name: Samples(metric, []) for metric in BROKER_METRICS}
        partitions = [] if hosting is None else list(hosting.partitions.values())
        led = [partition for partition in partitions if partition.group.replica.serves]
        for metric, value in ((REGISTERED, hosting is not None), (CARRIED, len(partitions)), (LED, len(led))):
            self._samples[metric.name] = single(metric, value)
        for partition in partitions:
            self._add_carried(partition)
        for partition in led:
            self._add_led(partition)
        self._add_positions(led)

    @property
    def samples(self) -> list[Samples]:
        """All of it."""
        return list(self._samples.values())

    def _add(self, metric: Metric, labels: tuple[str, ...], value: float) -> None:
        self._samples[metric.name].values.append((labels, value))

    def _add_carried(self, partition: Partition) -> None:
        place, replica = _place(partition), partition.group.replica
        self._add(LEADER, place, replica.serves)
        self._add(TERM, place, replica.raft.term)
        if (log_bytes := replica.store.log_bytes()) is not None:
            self._add(LOG_BYTES, place, log_bytes)

    def _add_led(self, partition: Partition) -> None:
        place, replica = _place(partition), partition.group.replica
        raft = replica.raft
        self._add(START_OFFSET, place, replica.start_offset)
        self._add(NEXT_OFFSET, place, replica.high_watermark)
        voters = raft.configuration.voters
        self._add(REPLICAS, place, len(voters))
        self._add(CAUGHT_UP, place, sum(voter == raft.replica or is_ready(raft, voter) for voter in voters))

    def _add_positions(self, led: list[Partition]) -> None:
        found = [
            (_rank(name, partition.group.replica), name, partition)
            for partition in led
            for name in partition.group.replica.state.positions
        ]
        if len(found) > POSITIONS_MAX:
            found.sort(key=lambda each: each[0])
        for _, name, partition in found[:POSITIONS_MAX]:
            self._add_position(name, partition)
        self._samples[LEFT_OUT.name] = single(LEFT_OUT, max(len(found) - POSITIONS_MAX, 0))

    def _add_position(self, name: str, partition: Partition) -> None:
        labels, replica = (name, *_place(partition)), partition.group.replica
        position = replica.state.positions[name]
        self._add(POSITION, labels, position)
        self._add(LAG, labels, max(replica.high_watermark - max(position, replica.start_offset), 0))
        hold_bytes = replica.state.holds.get(name)
        if hold_bytes is not None:
            self._add(HOLD_BYTES, labels, hold_bytes)
            self._add(OVERTAKEN, labels, position < replica.start_offset)


def _place(partition: Partition) -> tuple[str, str]:
    return partition.topic, str(partition.number)


def _rank(name: str, replica: Replica) -> int:
    """Who is shown first: holds, then groups. Registered consumers get a new number each time."""
    if name in replica.state.holds:
        return 0
    return 2 if name.startswith("#") else 1
