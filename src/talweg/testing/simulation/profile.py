"""What a run is like: how many brokers, how bad the weather, which faults. Drawn from the seed.

Each seed enables some kinds of fault and leaves out others: a run in which everything goes wrong at once
reaches fewer deep states than many runs in which a few things go wrong often.
"""

from random import Random

import msgspec

from talweg.raft import Settings
from talweg.replication.state import RECENT_BATCHES
from talweg.testing.simulation.network import Weather
from talweg.testing.simulation.schedule import TICK_US

# Kinds of fault with the share of seeds that have them. `faults.py` has a method for each.
FAULTS = {
    "partition": 0.6,
    "one_way_partition": 0.5,
    "isolate_leader": 0.5,
    "crash": 0.7,
    "crash_leader": 0.5,
    "crash_all": 0.25,
    "crash_during_disk_work": 0.5,
    "full_disk": 0.3,
    "failing_disk": 0.3,
    "failing_sync": 0.3,
    "slow_disk": 0.3,
    "wipe": 0.4,
    "forgetful_voter": 0.3,
    "rot": 0.3,
    "pause": 0.4,
    "storm": 0.4,
    "drift": 0.3,
    "connection_loss": 0.3,
}
OPERATIONS = {
    "add_learner": 0.5,
    "promote": 0.5,
    "add_voter": 0.3,
    "remove": 0.5,
    "demote": 0.3,
    "transfer": 0.5,
    "retention": 0.7,
}


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in ticks unless their names say otherwise."""

    voters: int = 3
    spares: int = 1  # brokers outside the group at first
    duration_ticks: int = 600
    settings: Settings = Settings()
    segment_bytes: int = 4096
    snapshot_interval_bytes: int = 4096
    journal_bytes: int = 0  # of each of its files; 0: every segment is synced by itself
    weather: Weather = Weather()
    pump_later: float = 0.2  # share of events after which the replica is pumped a little later
    disk_us: int = 300
    faults: tuple[str, ...] = ()
    fault_interval_ticks: int = 30
    operations: tuple[str, ...] = ()
    operation_interval_ticks: int = 40
    producers: int = 3
    consumers: int = 1
    readers: int = 1
    pause_between_batches_ticks: int = 12
    batches_at_once: int = 2  # by one producer, at most: what comes together is a run
    client_timeout_ticks: int = 40  # without an answer: try again
    transactors: int = 0


def draw_profile(random: Random) -> Profile:
    """A profile for one run."""
    election_ticks = random.choice((5, 8, 10))
    profile = Profile(
        voters=random.choice((3, 3, 3, 5)),
        spares=random.choice((0, 1, 1, 2)),
        duration_ticks=random.randrange(300, 700),
        settings=Settings(
            heartbeat_ticks=random.choice((1, 2)),
            election_ticks=election_ticks,
            append_bytes_max=random.choice((300, 1000, 1 << 20)),
            inflight_messages_max=random.choice((1, 3, 64)),
            inflight_bytes_max=random.choice((500, 3000, 8 << 20)),
            uncommitted_bytes_max=random.choice((800, 3000, 64 << 20)),
            tail_bytes_max=random.choice((0, 500, 3000, 16 << 20)),
        ),
        segment_bytes=random.choice((600, 1500, 4096, 65_536)),
        snapshot_interval_bytes=random.choice((1000, 4096, 1 << 20)),
        weather=draw_weather(random),
        pump_later=random.choice((0.0, 0.2, 0.6)),
        disk_us=random.choice((50, 300, 2000, 10_000)),
        faults=tuple(name for name, share in FAULTS.items() if random.random() < share),
        fault_interval_ticks=random.choice((15, 30, 60)),
        operations=tuple(name for name, share in OPERATIONS.items() if random.random() < share),
        operation_interval_ticks=random.choice((15, 30, 60)),
        producers=random.randrange(1, 5),
        consumers=random.randrange(0, 3),
        readers=random.randrange(0, 3),
        pause_between_batches_ticks=random.choice((4, 10, 25)),
        client_timeout_ticks=random.choice((8, 20, 40)),
        transactors=random.choice((0, 0, 1, 2)),
    )
    # Without dice of their own, so that seeds without a journal, or without many batches at once, are what
    # they were before there was such a thing.
    journal, at_once = profile.duration_ticks % 3, profile.duration_ticks // 3 % 3
    return msgspec.structs.replace(
        profile, journal_bytes=(0, 1500, 8000)[journal], batches_at_once=(2, 2, RECENT_BATCHES)[at_once]
    )


def draw_weather(random: Random) -> Weather:
    """What the network is like on the whole: often fine, sometimes dreadful."""
    return Weather(
        delay_us=random.choice((200, 1000, 4000)),
        late=random.choice((0.0, 0.0, 0.05, 0.2)),
        late_us=random.choice((1, 5, 30)) * TICK_US,
        drop=random.choice((0.0, 0.0, 0.02, 0.1)),
        duplicate=random.choice((0.0, 0.0, 0.02, 0.1)),
        in_order=random.random() < 0.5,
    )
