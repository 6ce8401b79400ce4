"""A whole cluster on this machine, each server a process of its own: for `talweg up`, and for tests.

    with LocalCluster(settings={"broker": {"--heartbeat": "200ms"}}) as cluster:
        with cluster.ask() as manager:
            manager.post("/topics", name="logs")
        cluster.kill_leader("logs", partition=0)

It blocks: calls return when what they say is done, or raise ClusterError after a deadline. What runs when
it is left is stopped, whatever happened; see processes.py for when the parent is killed.
"""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from talweg.config import BrokerSettings, ManagerSettings, load_settings
from talweg.errors import InvalidSetting, TalwegError
from talweg.testing.asking import Asker, try_to_get
from talweg.testing.directory_lock import DirectoryLock
from talweg.testing.ports import HOST, Ports, is_free, read_ports, write_ports
from talweg.testing.processes import ClusterError, Process, stop_all, wait_until

PRIMARY: Final = "primary"
PORTS_FILE: Final = "ports.json"
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 4.0  # what runs longer is killed: everything acknowledged is on disk
_LOOK_SECONDS: Final = 0.05
_PEERS: Final = "-peers"  # behind the name of a broker: its port for the others
_START_ATTEMPTS: Final = 3  # with other ports, when somebody snatched one

# What makes a process itself is for us to say; everything else may come from variables, too.
_OURS: Final = frozenset(
    "TALWEG_HOST TALWEG_PORT TALWEG_ADDRESS TALWEG_MANAGERS TALWEG_DATA TALWEG_STORAGE TALWEG_PEER_PORT "
    "TALWEG_PEER_ADDRESS TALWEG_METADATA TALWEG_READ_ONLY PORT MANAGER_ADDRESS CURRENT_ADDRESS "
    "READ_ONLY".split()
)

Flags = Mapping[str, str]


class LocalCluster:
    """Brokers `broker-1`…, managers `primary`, `reader-1`… and, if wanted, `standby-1`… on loopback."""

    def __init__(
        self,
        directory: Path | None = None,  # of everything; None: a temporary one that goes with the cluster
        *,
        brokers: int = 3,
        readers: int = 2,
        standbys: int = 0,
        port: int | None = None,  # of the primary; None: any
        settings: Mapping[str, Flags] | None = None,  # flags for `broker`, for `manager`, or for a name
        environment: Mapping[str, str] | None = None,  # in place of this process's own
    ) -> None:
        self._temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="talweg-cluster-"))
        self.brokers = tuple(f"broker-{number}" for number in range(1, brokers + 1))
        self.readers = tuple(f"reader-{number}" for number in range(1, readers + 1))
        self.standbys = tuple(f"standby-{number}" for number in range(1, standbys + 1))
        self.managers = (PRIMARY, *self.standbys, *self.readers)
        self.processes: dict[str, Process] = {}
        given = os.environ if environment is None else environment
        # A topic that does not say asks for no more replicas than there are brokers.
        fitting = {} if brokers >= 3 else {"TALWEG_REPLICATION": str(max(brokers, 1))}
        self._environment = fitting | {name: value for name, value in given.items() if name not in _OURS}
        self._port = port
        self._settings = dict(settings or {})
        self._lock: DirectoryLock | None = None
        self._ports: Ports | None = None

    # The whole

    @property
    def primary(self) -> str:
        """The name of the manager that was started as the primary."""
        return PRIMARY

    @property
    def url(self) -> str:
        """The primary's endpoint."""
        return self.endpoint(PRIMARY)

    @property
    def servers(self) -> str:
        """Every manager's endpoint, as clients and TALWEG_URL take them; the primary's first."""
        return ",".join(self.endpoint(name) for name in self.managers)

    def prepare(self) -> None:
        """Lock the directory, take ports and check all settings; raises InvalidSetting."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidSetting(f"--data: {self.directory} cannot be made: {error.strerror}") from None
        self._lock = DirectoryLock(self.directory)
        atexit.register(self.close)
        self._take_ports()

    def _take_ports(self) -> None:
        assert self._lock is not None
        path = self.directory / PORTS_FILE
        if self._ports is not None:
            self._ports.close()
        self._ports = Ports(read_ports(path))
        if self._port is not None:
            self._ports.take(PRIMARY, self._port)
        for name in (*self.managers, *self.brokers):
            if name != PRIMARY or self._port is None:
                self._ports.take_any(name)
            if name in self.brokers:
                self._ports.take_any(f"{name}{_PEERS}")
        try:
            write_ports(path, self._ports.by_name)
        except OSError as error:
            raise InvalidSetting(f"--data: {path} cannot be written: {error.strerror}") from None
        self.processes = {name: self._process(name) for name in (*self.managers, *self.brokers)}

    def _process(self, name: str) -> Process:
        assert self._ports is not None and self._lock is not None
        port = self._ports.by_name[name]
        role, flags = self._flags(name, port)
        process = BrokerSettings if role == "broker" else ManagerSettings
        load_settings(process, flags, self._environment)  # what is wrong is said here, and once
        switches = {"true": ["--read-only"], "false": ["--no-read-only"]}
        arguments = [role]
        for flag, value in flags.items():
            arguments += switches[value] if flag == "--read-only" else [flag, value]
        return Process(
            name,
            arguments,
            port=port,
            log=self.directory / "logs" / f"{name}.log",
            environment=self._environment,
            inherited=[self._lock.descriptor],
        )

    def _flags(self, name: str, port: int) -> tuple[str, dict[str, str]]:
        assert self._ports is not None
        flags = {"--host": HOST, "--port": str(port), "--address": f"http://{HOST}:{port}"}
        flags["--stop-timeout"] = "2s"
        if name in self.brokers:
            role = "broker"
            peer_port = self._ports.by_name[f"{name}{_PEERS}"]
            managers = (f"http://{HOST}:{self._ports.by_name[manager]}" for manager in self.managers)
            flags |= {"--managers": ",".join(managers), "--data": str(self.directory / name)}
            flags |= {"--peer-port": str(peer_port), "--peer-address": f"{HOST}:{peer_port}"}
        else:
            role = "manager"
            # Quoted: a URL gives '%' and '?' a meaning of their own.
            flags |= {"--metadata": f"sqlite:///{quote(str(self.directory.absolute() / 'metadata.db'))}"}
            flags |= {"--read-only": "true" if name in self.readers else "false"}
        return role, flags | dict(self._settings.get(role, {})) | dict(self._settings.get(name, {}))

    def start(self, seconds_max: float = START_SECONDS_MAX) -> None:
        """Start everything, and return when it is ready."""
        try:
            if self._lock is None:
                self.prepare()
            for attempt in range(1, _START_ATTEMPTS + 1):
                self.start_processes()
                try:
                    self.wait_until_ready(seconds_max)
                    return
                except ClusterError:
                    if attempt == _START_ATTEMPTS or not self._lost_a_port():
                        raise
                    stop_all(self.processes.values(), STOP_SECONDS_MAX)
                    self._take_ports()
        except BaseException:
            self.close()
            raise

    def start_processes(self) -> None:
        """Start all that do not run, and wait for nothing."""
        for process in self.processes.values():
            if not process.running:
                process.start()

    def _lost_a_port(self) -> bool:
        """Whether a process ended because somebody else listens where it should."""
        assert self._ports is not None
        ended = {name for name, process in self.processes.items() if process.exit_code is not None}
        return any(
            not is_free(port)
            for name, port in self._ports.by_name.items()
            if name.removesuffix(_PEERS) in ended
        )

    def wait_until_ready(self, seconds_max: float = START_SECONDS_MAX) -> None:
        """Every process answers, and all brokers are active."""
        deadline = time.monotonic() + seconds_max
        while (missing := self.missing()) is not None:
            ended = [process for process in self.processes.values() if process.exit_code is not None]
            if ended:
                raise ClusterError(_story(ended, "ended"))
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"not ready after {seconds_max:g} s: {missing}\n"
                    + _story(self.processes.values(), "said")
                )
            time.sleep(_LOOK_SECONDS)

    def missing(self) -> str | None:
        """What it still takes for the cluster to be ready; None when it is."""
        for name in self.managers:
            face = try_to_get(self.endpoint(name), "/")
            if face is None or not face.get("healthy"):
                return f"{name} {'does not answer' if face is None else 'is not healthy'}"
        for name in self.brokers:
            if try_to_get(self.endpoint(name), "/") is None:
                return f"{name} does not answer"
        seen = try_to_get(self.url, "/admin/brokers")
        active = {broker["endpoint"] for broker in _brokers_of(seen) if broker["status"] == "active"}
        late = [name for name in self.brokers if self.endpoint(name) not in active]
        return f"{', '.join(late)} not active" if late else None

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> list[str]:
        """Stop everything, in good order if that is quick; returns the names of those that were killed.

        What is on disk stays, and `start` finds it again.
        """
        return stop_all(self.processes.values(), seconds_max)

    def close(self) -> None:
        """Stop everything, and let go of the directory; a temporary one goes, too."""
        try:
            stop_all(self.processes.values(), STOP_SECONDS_MAX)
        finally:
            atexit.unregister(self.close)
            if self._ports is not None:
                self._ports.close()
                self._ports = None
            if self._lock is not None:
                self._lock.close()
                self._lock = None
            if self._temporary:
                shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # One process

    def endpoint(self, name: str) -> str:
        """The URL of a process."""
        return self.processes[name].endpoint

    def ask(self, name: str = PRIMARY, seconds_max: float = 10.0) -> Asker:
        """A client of one process, for one thread."""
        return Asker(self.endpoint(name), seconds_max)

    def kill(self, *names: str) -> None:
        """SIGKILL, all at once; returns when they are gone."""
        for name in names:
            self.processes[name].begin_kill()
        for name in names:
            self.processes[name].kill()

    def pause(self, name: str) -> None:
        """SIGSTOP: it keeps everything and does nothing."""
        self.processes[name].pause()

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.processes[name].resume()

    def terminate(self, name: str, seconds_max: float = 30.0) -> int:
        """SIGTERM; returns the exit code when it has ended."""
        return self.processes[name].terminate(seconds_max)

    def restart(self, *names: str, seconds_max: float = START_SECONDS_MAX) -> None:
        """Stop them in good order if they run, start them all, and return when they answer."""
        for name in names:
            if self.processes[name].running:
                self.processes[name].terminate()
        for name in names:
            self.processes[name].start()
        for name in names:
            self.wait_until_it_answers(name, seconds_max)

    def heal(self, seconds_max: float = START_SECONDS_MAX) -> None:
        """Resume what is paused, start what was killed, activate who was deactivated: all is ready again."""
        for process in self.processes.values():
            if process.paused:
                process.resume()
        self.start_processes()
        deadline = time.monotonic() + seconds_max
        self.wait_until_it_answers(PRIMARY, seconds_max)
        for name, status in self.statuses().items():
            if status == "deactivated":
                with self.ask() as manager:
                    manager.post("/admin/broker/activate", broker_id=self.number(name))
        self.wait_until_ready(max(deadline - time.monotonic(), 1.0))

    def kill_leader(self, topic: str, partition: int = 0) -> str:
        """SIGKILL to the broker that leads a partition; returns its name."""
        name = self.wait_for_leader(topic, partition)
        self.kill(name)
        return name

    def wait_until_it_answers(self, name: str, seconds_max: float = START_SECONDS_MAX) -> None:
        """GET / is answered, and a manager is healthy."""
        process = self.processes[name]

        def answers() -> bool:
            if not process.running:
                raise ClusterError(_story([process], "ended"))
            face = try_to_get(process.endpoint, "/")
            return face is not None and bool(name in self.brokers or face.get("healthy"))

        wait_until(answers, f"{name} to answer", seconds_max, pause_seconds=_LOOK_SECONDS)

    # What the cluster knows

    def statuses(self, asked: str = PRIMARY) -> dict[str, str]:
        """What a manager says of each broker: active, inactive and so on, by name."""
        names = {self.endpoint(name): name for name in self.brokers}
        with self.ask(asked) as manager:
            brokers = _brokers_of(manager.get("/admin/brokers"))
        return {
            names[broker["endpoint"]]: broker["status"] for broker in brokers if broker["endpoint"] in names
        }

    def number(self, name: str, asked: str = PRIMARY) -> int:
        """The number that managers know a broker by."""
        with self.ask(asked) as manager:
            for broker in _brokers_of(manager.get("/admin/brokers")):
                if broker["endpoint"] == self.endpoint(name):
                    return int(broker["id"])
        raise ClusterError(f"{asked} does not know {name}")

    def leader(self, topic: str, partition: int) -> str | None:
        """The name of the broker that leads, as the managers that answer know it; None if none does."""
        known: list[tuple[int, str]] = []
        for manager in self.managers:
            process = self.processes[manager]
            if not process.running or process.paused:
                continue
            metadata = try_to_get(process.endpoint, f"/v1/metadata?topics={topic}")
            known += self._leaders_in(metadata or {}, topic, partition)
        return max(known)[1] if known else None

    def _leaders_in(
        self, metadata: Mapping[str, Any], topic: str, partition: int
    ) -> Iterator[tuple[int, str]]:
        """With their terms."""
        names = {self.endpoint(name): name for name in self.brokers}
        endpoints = {broker["id"]: broker["endpoint"] for broker in metadata.get("brokers", ())}
        for entry in metadata.get("topics", ()):
            for part in entry["partitions"] if entry["topic"] == topic else ():
                # A term of 0 is a guess.
                if part["partition"] == partition and part["leader"] is not None and part["term"]:
                    name = names.get(endpoints.get(part["leader"], ""))
                    if name is not None:
                        yield part["term"], name

    def wait_for_leader(
        self, topic: str, partition: int, *, other_than: str | None = None, seconds_max: float = 30.0
    ) -> str:
        """The name of the broker that leads, once there is one (and it is not that one)."""
        found: list[str] = []

        def known() -> bool:
            found[:] = [name for name in [self.leader(topic, partition)] if name is not None]
            return bool(found) and found[0] != other_than

        wait_until(known, f"a leader of {topic}-{partition} other than {other_than}", seconds_max)
        return found[0]

    def wait_for_status(self, name: str, status: str, seconds_max: float = 30.0) -> None:
        """A broker is listed as active, inactive and so on."""

        def listed() -> bool:
            try:
                return self.statuses().get(name) == status
            except TalwegError:
                return False

        wait_until(listed, f"{name} to be {status}", seconds_max, pause_seconds=_LOOK_SECONDS)


def _brokers_of(answer: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return list((answer or {}).get("brokers", ()))


def _story(processes: Any, verb: str) -> str:
    return "\n".join(f"{process.name} {verb}:\n{process.last_words()}" for process in processes)
