"""What may be wrong with a cluster, or with this machine, and what to do about it. Pure: `doctor` looks.

Each check takes what was seen and says what it finds. Nothing found is good news, too, and is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

Level = Literal["fine", "warning", "wrong"]

CLOCK_SECONDS_MAX: Final = 3.0  # a Date header has whole seconds, and is renewed once in a second
FILES_MIN: Final = 4_096  # open files that a broker may need with some hundred partitions
_DISK_WARNING: Final = 0.10  # of a disk that is free
_DISK_WRONG: Final = 0.03
_POSITIONS_WARNING: Final = 0.8  # of those that a partition keeps


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    level: Level
    subject: str
    what: str
    remedy: str = ""  # empty when nothing need be done


class Server(msgspec.Struct, frozen=True):
    """A manager or a broker, as it answered."""

    endpoint: str
    role: str = ""  # primary, stand-by, read-only, broker; empty if it did not answer
    version: str = ""
    healthy: bool = False
    metadata_available: bool = True
    clock_ahead_seconds: float | None = None  # of ours
    error: str = ""  # why it did not answer


class Broker(msgspec.Struct, frozen=True):
    """A broker, as the managers list it."""

    number: int
    endpoint: str
    status: str


class Partition(msgspec.Struct, frozen=True):
    """A partition, as the managers know it."""

    topic: str
    number: int
    leader: int | None
    replicas: tuple[int, ...]


class Reader(msgspec.Struct, frozen=True):
    """A group or a registered consumer, and what it reads, as far as retention is concerned."""

    name: str
    topic: str
    overtaken: tuple[int, ...]  # partitions of which retention has dropped what it had not read
    holds: bool  # retention is to wait for it


class Machine(msgspec.Struct, frozen=True):
    """This machine, and what runs here."""

    open_files_max: int
    java: str | None  # where it is
    spark: bool  # pyspark is installed
    disks: Mapping[str, tuple[int, int]]  # of data directories: free and total bytes
    unseen: Mapping[str, str] = {}  # directories that cannot be looked at, and why


def check_managers(managers: Sequence[Server]) -> Iterator[Finding]:
    """Somebody must answer, and one of them must be the primary."""
    for manager in managers:
        if not manager.role:
            yield Finding(
                "warning" if any(other.role for other in managers) else "wrong",
                manager.endpoint,
                f"no manager answers there: {manager.error}",
                "start it (talweg up, or talweg manager), or correct --servers or TALWEG_URL",
            )
        elif not manager.healthy:
            yield Finding(
                "wrong",
                manager.endpoint,
                f"the manager ({manager.role}) is not healthy: it does not know the cluster yet",
                "look at its log; it may be unable to read the metadata store (its --metadata)",
            )
        else:
            yield Finding("fine", manager.endpoint, f"{manager.role} manager, version {manager.version}")
    answering = [manager for manager in managers if manager.role]
    if answering and not any(manager.role == "primary" for manager in answering):
        yield Finding(
            "wrong",
            "primary",
            "no manager is the primary: reads go on, nothing can be created, registered or moved",
            "start a manager without --read-only, or wait for the lease to lapse (--lease) if one just died",
        )
    for manager in answering:
        if not manager.metadata_available:
            yield Finding(
                "wrong",
                "metadata store",
                f"{manager.endpoint} cannot reach it: what is listed may be old, and nothing can be changed",
                "start the database, or check the address in --metadata",
            )


def check_brokers(brokers: Sequence[Broker], faces: Sequence[Server]) -> Iterator[Finding]:
    """There must be some, and they should all be active and answer."""
    if not brokers:
        yield Finding(
            "wrong", "brokers", "no broker is registered", "start one: talweg broker --managers URL"
        )
    silent = {face.endpoint: face.error for face in faces if not face.role}
    for broker in brokers:
        subject = f"broker {broker.number}"
        if broker.status == "inactive":
            yield Finding(
                "wrong",
                subject,
                f"inactive: the managers have not heard of it for a while ({broker.endpoint})",
                "start it again on its data directory, or, if it is gone for good, talweg broker remove "
                f"{broker.number}",
            )
        elif broker.status == "deactivated":
            yield Finding(
                "warning",
                subject,
                "deactivated by hand: no new partitions go there",
                f"talweg broker activate {broker.number}, if that is over",
            )
        elif broker.status == "draining":
            yield Finding("warning", subject, "being drained, to be removed", "")
        elif broker.endpoint in silent:
            yield Finding(
                "wrong",
                subject,
                f"active, but does not answer from here: {silent[broker.endpoint]}",
                f"check the network between here and {broker.endpoint}, and the broker's --address",
            )
        elif broker.status == "active":
            yield Finding("fine", subject, f"active at {broker.endpoint}")


def check_partitions(partitions: Sequence[Partition], brokers: Sequence[Broker]) -> Iterator[Finding]:
    """Each should have a leader, and as many replicas on brokers that live as it was given."""
    alive = {broker.number for broker in brokers if broker.status not in ("inactive", "removed")}
    most: dict[str, int] = {}
    for part in partitions:
        most[part.topic] = max(most.get(part.topic, 0), len(part.replicas))
    healthy = 0
    for part in partitions:
        subject = f"{part.topic}, partition {part.number}"
        living = [number for number in part.replicas if number in alive]
        dead = [str(number) for number in part.replicas if number not in alive]
        if part.leader is None or 2 * len(living) <= len(part.replicas):
            yield Finding(
                "wrong",
                subject,
                "nobody leads it: it can be neither written nor read"
                + (f" (broker {', '.join(dead)} of its replicas is not there)" if dead else ""),
                "bring back a majority of its brokers with their data; if they run, look again in a second",
            )
        elif dead or len(part.replicas) < most[part.topic]:
            yield Finding(
                "warning",
                subject,
                f"{len(living)} of {most[part.topic]} replicas are there: one more failure may stop it",
                f"start broker {', '.join(dead)} again, or wait: replicas are rebuilt elsewhere"
                if dead
                else "wait: a replica is being rebuilt; if it never ends, look at the primary's log",
            )
        else:
            healthy += 1
    if healthy:
        yield Finding("fine", "partitions", f"{healthy} of {len(partitions)} led, with all replicas")


def check_readers(
    readers: Sequence[Reader], unasked: Mapping[str, Sequence[int]] | None = None
) -> Iterator[Finding]:
    """Nobody should lose messages to retention before it has read them; least of all one with a hold."""
    for topic, numbers in (unasked or {}).items():
        what = f"nobody could be asked who reads partition {', '.join(map(str, numbers))}"
        yield Finding("warning", f"consumers, topic {topic}", what, "see to its leaders, then look again")
    for reader in readers:
        if not reader.overtaken:
            continue
        which = f"{reader.name} {reader.topic}"
        what = (
            f"retention has dropped what it had not read (partition {', '.join(map(str, reader.overtaken))})"
        )
        remedy = f"let retention wait for it: talweg consumer hold {which} SIZE; or go on from what is left: "
        remedy += f"talweg consumer seek {which} start"
        if reader.holds:
            what = f"its hold was too small: {what}"
            remedy = f"a larger one: talweg consumer hold {which} SIZE; or let it read more often"
        yield Finding("warning", f"consumer {reader.name}, topic {reader.topic}", what, remedy)
    held = sum(reader.holds for reader in readers)
    if held and not unasked and not any(reader.overtaken for reader in readers):
        yield Finding("fine", "holds", f"retention waits for {held}, and has overtaken nobody")


def check_positions(positions: Mapping[str, int], positions_max: int) -> Iterator[Finding]:
    """How many have a position in a partition of each topic, at most: one that is full takes nobody new."""
    for topic, count in positions.items():
        if count >= _POSITIONS_WARNING * positions_max:
            yield Finding(
                "wrong" if count >= positions_max else "warning",
                f"consumers, topic {topic}",
                f"{count:,} have a position in one partition, which keeps {positions_max:,} of them: after "
                "that nobody new can commit one",
                f"delete those that read no more: talweg consumer list --topic {topic} shows them, talweg "
                f"consumer delete NAME {topic} deletes one",
            )


def check_clocks(servers: Sequence[Server]) -> Iterator[Finding]:
    """Timestamps are given by clients and brokers, and leases are measured by clocks."""
    known = [server for server in servers if server.clock_ahead_seconds is not None]
    late = False
    for server in known:
        ahead = server.clock_ahead_seconds or 0.0
        if abs(ahead) > CLOCK_SECONDS_MAX:
            late = True
            yield Finding(
                "wrong",
                server.endpoint,
                f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's",
                "let both follow a time server (NTP): timestamps, retention and leases depend on them",
            )
    if known and not late:
        yield Finding("fine", "clocks", f"within {CLOCK_SECONDS_MAX:g} s of this machine's")


def check_versions(servers: Sequence[Server], ours: str) -> Iterator[Finding]:
    """All the same, once an update is through."""
    by_version: dict[str, list[str]] = {}
    for server in servers:
        if server.version:
            by_version.setdefault(server.version, []).append(server.endpoint)
    if not by_version:
        return
    if set(by_version) == {ours}:
        yield Finding("fine", "versions", f"all run {ours}, as this command does")
        return
    told = "; ".join(f"{version}: {', '.join(where)}" for version, where in sorted(by_version.items()))
    yield Finding(
        "warning",
        "versions",
        f"they differ (this command: {ours}; {told})",
        "update all to the same version, brokers one after another",
    )


def check_machine(machine: Machine) -> Iterator[Finding]:
    """What a server, or Spark, would lack here."""
    if machine.open_files_max < FILES_MIN:
        yield Finding(
            "warning",
            "open files",
            f"a process here may have {machine.open_files_max} files open; a broker with many partitions "
            "needs more",
            f"ulimit -n {FILES_MIN} before servers start, or LimitNOFILE= in their units",
        )
    else:
        yield Finding("fine", "open files", f"a process here may have {machine.open_files_max} open")
    for directory, (free, total) in machine.disks.items():
        share = free / total if total else 0.0
        level: Level = "wrong" if share < _DISK_WRONG else "warning" if share < _DISK_WARNING else "fine"
        yield Finding(
            level,
            f"disk of {directory}",
            f"{share:.0%} free ({free / 1e9:.1f} GB)",
            ""
            if level == "fine"
            else "make room, or shorten retention: a broker with a full disk refuses to write",
        )
    for directory, reason in machine.unseen.items():
        what = f"it cannot be looked at: {reason}"
        yield Finding(
            "wrong", f"disk of {directory}", what, "correct --data, or run talweg doctor where it is"
        )
    if machine.spark and machine.java is None:
        yield Finding(
            "warning",
            "java",
            "pyspark is installed, but there is no Java: pipelines cannot run here",
            "install a JDK (17 or 21) and set JAVA_HOME, or put java into PATH",
        )
