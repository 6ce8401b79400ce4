"""The settings of each process: one frozen value each. The fields are the table of all settings there are.

Every field says how it is called as a flag and as a variable (in a file it is the variable's name in small
letters, without `TALWEG_`), what it may be, and what it is for. Units stand in the names of fields; in the
values that people write they stand behind the number.
"""

from typing import Annotated, ClassVar, Final, Literal, NamedTuple, get_type_hints
from urllib.parse import urlsplit

import msgspec

from talweg.config import kinds
from talweg.config.kinds import Kind, choice, duration, or_none, size, whole

PREFIX: Final = "TALWEG_"

_LOCAL_NETWORKS: Final = (
    "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7",
)  # fmt: skip


class Setting(NamedTuple):
    """A setting's names, what it may be, and what it is for."""

    flag: str
    variable: str
    kind: Kind
    purpose: str
    also: str = ""  # what the reference documents call its variable
    short: str = ""  # what they call its flag
    default: str = ""  # in words, where it follows from other settings

    @property
    def key(self) -> str:
        """Its name in a file."""
        return self.variable.removeprefix(PREFIX).lower()


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What brokers and managers have in common."""

    section: ClassVar[str]  # the table of a file that is for this process

    host: Annotated[str, Setting("--host", "TALWEG_HOST", kinds.HOST, "Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int,
        Setting("--port", "TALWEG_PORT", kinds.PORT, "Port to listen on; 0 takes any free one.", also="PORT"),
    ] = 8000
    address: Annotated[
        str | None,
        Setting(
            "--address",
            "TALWEG_ADDRESS",
            kinds.ENDPOINT,
            "URL at which others reach this process.",
            also="CURRENT_ADDRESS",
            default="http:// with host and port",
        ),
    ] = None
    heartbeat_seconds: Annotated[
        float,
        Setting(
            "--heartbeat", "TALWEG_HEARTBEAT", duration("10ms", "1m"), "Time between a broker's heartbeats."
        ),
    ] = 1.0
    body_bytes_max: Annotated[
        int,
        Setting("--body-max", "TALWEG_BODY_MAX", size("1 KiB", "1 GiB"), "Size of a request's body at most."),
    ] = 16 << 20
    bodies_bytes_max: Annotated[
        int,
        Setting(
            "--bodies-max",
            "TALWEG_BODIES_MAX",
            size("1 MiB", "1 TiB"),
            "Size of the bodies of all requests under way; more are refused until there is room.",
        ),
    ] = 256 << 20
    requests_max: Annotated[
        int,
        Setting(
            "--requests-max",
            "TALWEG_REQUESTS_MAX",
            whole(1, 1_000_000),
            "Requests under way at once, at most.",
        ),
    ] = 10_000
    wait_seconds_max: Annotated[
        float,
        Setting(
            "--wait-max",
            "TALWEG_WAIT_MAX",
            duration("0s", "10m"),
            "Time that a reader may ask to wait for a message, at most.",
        ),
    ] = 30.0
    request_seconds_max: Annotated[
        float,
        Setting(
            "--request-timeout",
            "TALWEG_REQUEST_TIMEOUT",
            duration("10ms", "10m"),
            "Time that servers wait for each other's answers, and writers for a majority.",
        ),
    ] = 10.0
    stop_seconds_max: Annotated[
        float,
        Setting(
            "--stop-timeout",
            "TALWEG_STOP_TIMEOUT",
            duration("0s", "10m"),
            "Time that requests under way have to finish when the process stops.",
        ),
    ] = 5.0
    log_level: Annotated[
        str,
        Setting(
            "--log-level",
            "TALWEG_LOG_LEVEL",
            choice("debug", "info", "warning", "error"),
            "What is worth a line in the log.",
        ),
    ] = "info"

    def endpoint(self, port: int) -> str:
        """The URL at which others reach this process, which listens on that port."""
        return self.address or f"http://{_bracketed(self.host)}:{port}"


class BrokerSettings(ProcessSettings, frozen=True, kw_only=True):
    """What a broker can be told."""

    section: ClassVar[str] = "broker"

    port: Annotated[
        int,
        Setting("--port", "TALWEG_PORT", kinds.PORT, "Port to listen on; 0 takes any free one.", also="PORT"),
    ] = 8001
    managers: Annotated[
        tuple[str, ...],
        Setting(
            "--managers",
            "TALWEG_MANAGERS",
            kinds.ENDPOINTS,
            "URLs of managers, any of which knows the primary.",
            also="MANAGER_ADDRESS",
        ),
    ] = ("http://127.0.0.1:8000",)
    data: Annotated[
        str | None,
        Setting(
            "--data",
            "TALWEG_DATA",
            kinds.DIRECTORY,
            "Directory that makes this broker itself. One that is lost or new is another broker.",
            default="talweg-data/broker-PORT",
        ),
    ] = None
    storage: Annotated[
        str | None,
        Setting(
            "--storage",
            "TALWEG_STORAGE",
            kinds.STORAGE,
            "Where messages are kept.",
            default="segment files in the data directory",
        ),
    ] = None
    peer_port: Annotated[
        int,
        Setting(
            "--peer-port", "TALWEG_PEER_PORT", kinds.PORT, "Port for other brokers; 0 takes any free one."
        ),
    ] = 0
    peer_address: Annotated[
        str | None,
        Setting(
            "--peer-address",
            "TALWEG_PEER_ADDRESS",
            kinds.HOST_AND_PORT,
            "HOST:PORT at which other brokers reach this one.",
            default="the host of the address, with the peer port",
        ),
    ] = None
    durability: Annotated[
        Literal["disk", "memory"],
        Setting(
            "--durability",
            "TALWEG_DURABILITY",
            choice("disk", "memory"),
            "What a majority has done with a message when it is acknowledged: synced it to disk, or only "
            "taken it. The latter is faster; a broker that loses its power loses its last messages, and they "
            "are gone for good if the others that had them fail before it has fetched them again.",
        ),
    ] = "disk"
    tick_seconds: Annotated[
        float,
        Setting("--tick", "TALWEG_TICK", duration("1ms", "10s"), "Unit of time of elections."),
    ] = 0.1
    election_ticks: Annotated[
        int,
        Setting(
            "--election-ticks",
            "TALWEG_ELECTION_TICKS",
            whole(3, 1000),
            "Ticks of silence after which a leader is doubted, at least.",
        ),
    ] = 10
    leader_ticks: Annotated[
        int,
        Setting(
            "--leader-ticks",
            "TALWEG_LEADER_TICKS",
            whole(1, 500),
            "Ticks between the signs of life of a leader; at most a third of the election ticks.",
        ),
    ] = 3
    writer_threads: Annotated[
        int,
        Setting(
            "--writer-threads", "TALWEG_WRITER_THREADS", whole(1, 256), "Threads that write to the disk."
        ),
    ] = 4
    snapshot_bytes: Annotated[
        int,
        Setting(
            "--snapshot-every",
            "TALWEG_SNAPSHOT_EVERY",
            size("64 KiB", "64 GiB"),
            "How much of a log lies between two snapshots. Retention cuts at snapshots.",
        ),
    ] = 64 << 20
    retention_check_seconds: Annotated[
        float,
        Setting(
            "--retention-every",
            "TALWEG_RETENTION_EVERY",
            duration("100ms", "1d"),
            "Time between two looks for what retention may drop.",
        ),
    ] = 60.0
    stage_expiry_seconds: Annotated[
        float,
        Setting(
            "--stage-expiry",
            "TALWEG_STAGE_EXPIRY",
            duration("100ms", "365d"),
            "Time after which what was staged and nobody decided on is discarded, and what was decided on "
            "and nobody published is published.",
        ),
    ] = 3600.0
    fetch_bytes_max: Annotated[
        int,
        Setting(
            "--fetch-max",
            "TALWEG_FETCH_MAX",
            size("64 KiB", "1 GiB"),
            "Size of an answer to a fetch at most.",
        ),
    ] = 16 << 20

    def data_directory(self) -> str:
        """The directory that makes this broker itself."""
        return self.data or f"talweg-data/broker-{self.port}"

    def storage_url(self) -> str:
        """Where messages are kept: a URL, or a directory."""
        return self.storage or f"{self.data_directory()}/log"

    def peer_endpoint(self, port: int) -> str:
        """HOST:PORT at which other brokers reach this one, which listens for them on that port."""
        host = urlsplit(self.address).hostname if self.address else self.host
        return self.peer_address or f"{_bracketed(host or self.host)}:{port}"


class ManagerSettings(ProcessSettings, frozen=True, kw_only=True):
    """What a manager can be told."""

    section: ClassVar[str] = "manager"

    metadata: Annotated[
        str,
        Setting(
            "--metadata",
            "TALWEG_METADATA",
            kinds.METADATA,
            "Where the cluster keeps what it knows of itself.",
        ),
    ] = "sqlite:///talweg-data/metadata.db"
    read_only: Annotated[
        bool,
        Setting(
            "--read-only",
            "TALWEG_READ_ONLY",
            kinds.SWITCH,
            "Answer reads, forward writes, and never become the primary.",
            also="READ_ONLY",
            short="-r",
        ),
    ] = False
    lease_seconds: Annotated[
        float,
        Setting(
            "--lease",
            "TALWEG_LEASE",
            duration("100ms", "10m"),
            "Time after which a primary that is silent is no longer one.",
        ),
    ] = 3.0
    follow_seconds: Annotated[
        float,
        Setting(
            "--follow", "TALWEG_FOLLOW", duration("1ms", "1m"), "Time between two looks for changed metadata."
        ),
    ] = 0.2
    health_seconds: Annotated[
        float,
        Setting(
            "--health",
            "TALWEG_HEALTH",
            duration("10ms", "10m"),
            "Time between two looks at a broker that is silent.",
        ),
    ] = 1.0
    missed_max: Annotated[
        int,
        Setting(
            "--missed-max",
            "TALWEG_MISSED_MAX",
            whole(1, 1000),
            "Heartbeats or looks that a broker misses in a row before it is inactive.",
        ),
    ] = 3
    replace_seconds: Annotated[
        float,
        Setting(
            "--replace-after",
            "TALWEG_REPLACE_AFTER",
            duration("100ms", "365d"),
            "Time after which a broker that is gone is replaced: its replicas are rebuilt elsewhere.",
        ),
    ] = 600.0
    client_seconds: Annotated[
        float,
        Setting(
            "--client-timeout",
            "TALWEG_CLIENT_TIMEOUT",
            duration("100ms", "365d"),
            "Time without a heartbeat after which a producer or consumer is listed as inactive.",
        ),
    ] = 30.0
    partitions: Annotated[
        int,
        Setting(
            "--partitions", "TALWEG_PARTITIONS", whole(1, 100_000), "Partitions of a topic that does not say."
        ),
    ] = 4
    replication: Annotated[
        int,
        Setting(
            "--replication",
            "TALWEG_REPLICATION",
            whole(1, 9),
            "Replicas of a partition whose topic does not say.",
        ),
    ] = 3
    partitions_max: Annotated[
        int,
        Setting(
            "--partitions-max",
            "TALWEG_PARTITIONS_MAX",
            whole(1, 1_000_000),
            "Replicas of partitions that one broker is given at most.",
        ),
    ] = 4000
    retention_seconds: Annotated[
        float | None,
        Setting(
            "--retention",
            "TALWEG_RETENTION",
            or_none("forever", duration("1s", "36500d")),
            "How long the messages of a topic that does not say are kept.",
        ),
    ] = None
    retention_bytes: Annotated[
        int | None,
        Setting(
            "--retention-size",
            "TALWEG_RETENTION_SIZE",
            or_none("unlimited", size("1 MiB", "1024 TiB")),
            "How much is kept of each partition of a topic that does not say.",
        ),
    ] = None
    message_bytes_max: Annotated[
        int,
        Setting(
            "--message-max", "TALWEG_MESSAGE_MAX", size("1 KiB", "1 GiB"), "Size of a single message at most."
        ),
    ] = 1 << 20
    broker_networks: Annotated[
        tuple[str, ...],
        Setting(
            "--broker-networks",
            "TALWEG_BROKER_NETWORKS",
            kinds.NETWORKS,
            "Networks in which a broker that is added may be. Managers ask no address outside them.",
        ),
    ] = _LOCAL_NETWORKS


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def settings_of(process: type[ProcessSettings]) -> dict[str, Setting]:
    """The settings of a process, by the name of their field."""
    hints = get_type_hints(process, include_extras=True)
    return {field.name: hints[field.name].__metadata__[0] for field in msgspec.structs.fields(process)}
