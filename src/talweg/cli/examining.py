"""What `talweg doctor` looks at: every manager and broker by itself, what managers know, and this machine."""

import http.client
import importlib.util
import os
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from talweg.cli.admin import open_admin
from talweg.cli.checks import (
    Broker,
    Finding,
    Machine,
    Partition,
    Reader,
    Server,
    check_brokers,
    check_clocks,
    check_machine,
    check_managers,
    check_partitions,
    check_positions,
    check_readers,
    check_versions,
)
from talweg.client.description import ConsumerDescription, ManagerDescription
from talweg.errors import TalwegError
from talweg.replication.state import POSITIONS_MAX
from talweg.version import __version__

_AT_ONCE_MAX: Final = 16
_ANSWER_BYTES_MAX: Final = 1 << 20
_DIRECTORY: Final = Path("talweg-data")  # where `talweg up` keeps everything


def examine(servers: str | None, directories: Sequence[Path], timeout: float) -> list[Finding]:
    """Everything that can be looked at, in the order in which it matters."""
    with open_admin(servers, timeout) as admin:
        described = admin.managers()
        managers = [
            _with_face(each, look)
            for each, look in zip(described, _look_at((m.endpoint for m in described), timeout), strict=True)
        ]
        findings = list(check_managers(managers))
        faces: list[Server] = []
        if any(manager.role for manager in managers):
            try:
                brokers = [Broker(each.id, each.endpoint, each.status) for each in admin.brokers()]
                brokers = [broker for broker in brokers if broker.status != "removed"]
                partitions = [
                    Partition(topic.topic, part.partition, part.leader, part.replicas)
                    for topic in admin.status().topics
                    for part in topic.partitions
                ]
                consumers = admin.consumers(partial=True)
            except TalwegError as error:
                remedy = "look at the managers' logs, and run talweg doctor again"
                findings.append(
                    Finding("wrong", "managers", f"they do not answer questions: {error}", remedy)
                )
            else:
                faces = _look_at((broker.endpoint for broker in brokers), timeout)
                findings += check_brokers(brokers, faces)
                findings += check_partitions(partitions, brokers)
                findings += check_readers([_reader(each) for each in consumers], consumers.unasked)
                findings += check_positions(most_positions(consumers), POSITIONS_MAX)
    findings += check_clocks([*managers, *faces])
    findings += check_versions([*managers, *faces], __version__)
    findings += check_machine(this_machine(directories))
    return findings


def _reader(each: ConsumerDescription) -> Reader:
    overtaken = tuple(number for number, part in each.partitions.items() if part.overtaken)
    return Reader(each.name, each.topic, overtaken, each.keep_bytes is not None)


def most_positions(consumers: Iterable[ConsumerDescription]) -> dict[str, int]:
    """By topic: how many have a position in that one of its partitions where most have."""
    positions = Counter((each.topic, number) for each in consumers for number in each.partitions)
    most: dict[str, int] = {}
    for (topic, _), count in positions.items():
        most[topic] = max(most.get(topic, 0), count)
    return most


def _with_face(described: ManagerDescription, look: Server) -> Server:
    """What a manager says of itself, and how its clock goes."""
    if described.role is None:
        return Server(described.endpoint, error=described.error or look.error)
    return Server(
        described.endpoint,
        role=described.role,
        version=described.version or "",
        healthy=described.healthy,
        metadata_available=described.metadata_available,
        clock_ahead_seconds=look.clock_ahead_seconds,
    )


def _look_at(endpoints: Iterable[str], timeout: float) -> list[Server]:
    with ThreadPoolExecutor(_AT_ONCE_MAX) as pool:
        return list(pool.map(lambda endpoint: _look(endpoint, timeout), endpoints))


def _look(endpoint: str, timeout: float) -> Server:
    """A server by itself. Not as a client would: a client hides which one answers, and drops the clock."""
    parts = urlsplit(endpoint)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        face: Any = msgspec.json.decode(answer.read(_ANSWER_BYTES_MAX))
        ahead = _clock_ahead(answer.headers.get("date"))
        role, version = str(face["role"]), str(face["version"])
        return Server(endpoint, role, version, bool(face["healthy"]), clock_ahead_seconds=ahead)
    except (OSError, http.client.HTTPException) as error:
        return Server(endpoint, error=str(error) or type(error).__name__)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return Server(endpoint, error="it answers, but not as a server of Talweg does")
    finally:
        connection.close()


def _clock_ahead(date: str | None) -> float | None:
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return None


def this_machine(directories: Sequence[Path]) -> Machine:
    """What there is here."""
    disks: dict[str, tuple[int, int]] = {}
    unseen: dict[str, str] = {}
    for directory in directories or _usual_directories():
        try:
            usage = shutil.disk_usage(directory)
        except OSError as error:
            unseen[str(directory)] = error.strerror or str(error)
        else:
            disks[str(directory)] = (usage.free, usage.total)
    java = shutil.which("java", path=_java_path())
    spark = importlib.util.find_spec("pyspark") is not None
    return Machine(resource.getrlimit(resource.RLIMIT_NOFILE)[0], java, spark, disks, unseen)


def _usual_directories() -> Iterator[Path]:
    named = os.environ.get("TALWEG_DATA")
    for directory in (Path(named) if named else None, _DIRECTORY):
        if directory is not None and directory.is_dir():
            yield directory


def _java_path() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.pathsep.join([*([str(Path(home) / "bin")] if home else []), os.environ.get("PATH", "")])
