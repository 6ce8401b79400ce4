"""A producer that keeps writing while all brokers are killed at once, again and again."""

from random import Random

from raft.stage import Stage
from talweg.errors import TalwegError
from talweg.raft import Role
from talweg.records import Batch, encode_values
from talweg.replication.proposals import Outcome
from talweg.replication.replica import Replica

PRODUCER = 7
AHEAD_MAX = 5  # messages sent and not yet acknowledged
STEPS_MAX = 200_000
STEPS_BETWEEN_KILLS = 400  # on average; an election takes some hundred
BYTES_MAX = 1 << 20


class Load:
    """Messages 0 to `count`, each with its number as sequence. One is sent again until it is acknowledged."""

    def __init__(self, stage: Stage, random: Random, count: int) -> None:
        self.stage = stage
        self.kills = 0
        self.leaders: set[tuple[int, int]] = set()  # (term, broker)
        self.sent_again = 0
        self.acknowledged: dict[int, int] = {}  # sequence → offset
        self._random = random
        self._count = count
        self._under_way: dict[int, int] = {}  # sequence → attempt
        self._attempts = 0

    def run(self, kills: int) -> None:
        """Until everything is acknowledged and everybody was killed so many times."""
        stage = self.stage
        stage.silent = True
        kill_at = sorted(self._random.sample(range(20, STEPS_BETWEEN_KILLS * kills), kills))
        for step in range(STEPS_MAX):
            if len(self.acknowledged) == self._count and self.kills == kills:
                return
            if self.kills < kills and step >= kill_at[self.kills]:
                self._kill_all()
            self._step()
            stage.lines.clear()
        raise AssertionError(
            f"only {len(self.acknowledged)} of {self._count} messages after {STEPS_MAX} steps"
        )

    def _step(self) -> None:
        # Disks are slow (stopped), and sometimes a job gets done; messages come in any order.
        stage, random = self.stage, self._random
        broker = random.choice(stage.running)
        match random.randrange(10):
            case 0:
                for one in stage.running:
                    stage.do(one, Replica.tick)
            case 1 | 2:
                self._produce(broker)
            case 3 | 4 | 5:
                stage.finish_job(broker)
            case _ if stage.network:
                stage.deliver([random.choice(stage.network)])
        raft = stage.replica(broker).raft
        if raft.role is Role.LEADER:
            self.leaders.add((raft.term, broker))

    def _produce(self, broker: int) -> None:
        if self.stage.replica(broker).raft.role is not Role.LEADER or len(self._under_way) >= AHEAD_MAX:
            return
        wanted = [sequence for sequence in range(self._count) if sequence not in self.acknowledged]
        sequence = next((one for one in wanted if one not in self._under_way), None)
        if sequence is None or (self._under_way and sequence < max(self._under_way)):
            return  # in order: what failed goes first, once what was sent after it has failed as well
        self._attempts += 1
        attempt = self._attempts
        self._under_way[sequence] = attempt

        def done(outcome: Outcome) -> None:
            if self._under_way.get(sequence) != attempt:
                return  # the producer gave this attempt up
            del self._under_way[sequence]
            if isinstance(outcome, TalwegError):
                self.sent_again += 1
                assert outcome.retriable, outcome
                return
            (appended,) = outcome
            self.acknowledged[sequence] = appended.first_offset

        frame = encode_values(
            [b"message %d" % sequence],
            timestamp=0,
            producer_id=PRODUCER,
            producer_epoch=0,
            sequence=sequence,
        )
        self.stage.do(broker, lambda replica: replica.append([frame], done))

    def _kill_all(self) -> None:
        self.kills += 1
        stage = self.stage
        for broker in list(stage.running):
            if stage.has_job(broker) and self._random.random() < 0.7:
                stage.write_job(broker)
            stage.crash(broker, torn_bytes=self._random.randrange(400))
        self.sent_again += len(self._under_way)
        self._under_way.clear()
        stage.network.clear()
        for broker in stage.nodes:
            stage.start(broker)
            stage.set_disk(broker, "stopped")

    def report(self) -> list[str]:
        """What became of it, once everything has settled."""
        stage = self.stage
        for broker in stage.nodes:
            stage.set_disk(broker, None)
            stage.finish_job(broker)
        stage.pass_time(60)
        stage.lines.clear()
        terms = {term for term, _ in self.leaders}
        lines = [
            f"everybody was killed {self.kills} times, and {len(terms)} terms had a leader",
            f"{self._count} messages were acknowledged, {self.sent_again} attempts were not",
        ]
        assert len(terms) == len(self.leaders), "two leaders in one term"
        expected = [b"message %d" % sequence for sequence in range(self._count)]
        for broker in stage.nodes:
            values = read_all(stage.replica(broker))
            told = [values[self.acknowledged[sequence]] for sequence in range(self._count)]
            verdict = "each message once, in order" if values == expected == told else f"WRONG: {values}"
            lines.append(f"{broker} holds {len(values)} messages: {verdict}")
        return lines


def read_all(replica: Replica) -> list[bytes | None]:
    """Every committed value, by offset."""
    values: list[bytes | None] = []
    while len(values) < replica.high_watermark:
        for frame in replica.read_frames(len(values), BYTES_MAX):
            batch = Batch.from_frame(frame)
            assert batch.header.first_offset == len(values), "offsets have no gaps"
            values += batch.values()
    return values
