"""The commands of scenario files. Each is a method of `Play`; its docstring is its manual."""

from collections.abc import Callable, Iterable
from itertools import groupby
from random import Random

from raft import describe
from raft.load import Load
from raft.scenario import Command
from raft.stage import Stage
from talweg.errors import TalwegError
from talweg.raft import Configuration, Entry, HardState, Message, Refusal, Role, Settings
from talweg.records import Codec, Kind, encode_values, read_header, stamp
from talweg.replication.proposals import Done, Outcome
from talweg.replication.replica import Replica
from talweg.replication.state import Position
from talweg.storage import SegmentStores, Write
from talweg.storage.segment import LOG_SUFFIX
from talweg.testing.disk import SimulatedFiles
from talweg.testing.node import GROUP, INCARNATION

SETTINGS = {
    "heartbeat": "heartbeat_ticks",
    "election": "election_ticks",
    "append_bytes": "append_bytes_max",
    "inflight": "inflight_messages_max",
    "inflight_bytes": "inflight_bytes_max",
    "uncommitted_bytes": "uncommitted_bytes_max",
    "tail_bytes": "tail_bytes_max",
    "write": "write_ticks_max",
}
ENTRIES_MAX = 1 << 20


def numbers(text: str) -> list[int]:
    """`1,2,3`."""
    return [int(part) for part in text.split(",") if part]


class Play:
    """One scenario as it is played."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._reads = 0

    @property
    def stage(self) -> Stage:
        """The cluster, once there is one."""
        assert self._stage is not None, "the first command is `cluster`"
        return self._stage

    def run(self, command: Command) -> list[str]:
        """Carry out one command; returns what there is to tell."""
        method: Callable[[Command], None] | None = getattr(self, f"do_{command.name}", None)
        if method is None:
            raise ValueError(f"there is no command {command.name!r}")
        if self._stage is not None:
            self._stage.silent = "quiet" in command.words
        method(command)
        lines, self.stage.lines = self.stage.lines, []
        return lines

    # Every command may end in `quiet`: then messages are not told, only what comes of them.

    def _brokers(self, words: list[str]) -> list[int]:
        if not words or words[0] == "all":
            return self.stage.running
        return numbers(words[0])

    # Setting

    def do_cluster(self, command: Command) -> None:
        """`cluster voters=1,2,3 [learners=4] [timeouts=10,13,16] [settings]`: a new group, all empty."""
        values = dict(command.values)
        configuration = Configuration.of(numbers(values.pop("voters")), numbers(values.pop("learners", "")))
        timeouts = numbers(values.pop("timeouts", ""))
        segment_bytes = int(values.pop("segment_bytes", 4096))
        settings = Settings(**{SETTINGS[name]: int(value) for name, value in values.items()})
        waits = dict(zip(configuration.members, timeouts, strict=False))
        self._stage = Stage(
            configuration, settings, configuration.members, timeouts=waits, segment_bytes=segment_bytes
        )
        self._stage.lines.clear()

    def do_log(self, command: Command) -> None:
        """`log 1 terms=1,1,2 [term=3] [vote=2]`: a broker with this on its disk, just started."""
        (broker,) = numbers(command.words[0])
        terms = numbers(command.values["terms"])
        term = int(command.values.get("term", max(terms, default=0)))
        vote = command.values.get("vote")
        node = self.stage.nodes[broker]
        self.stage.crash(broker)
        node.wipe()
        store = SegmentStores(node.files).open(GROUP, INCARNATION)
        entries = [made_entry(index, of_term) for index, of_term in enumerate(terms, 1)]
        store.write(Write(entries=entries, hard_state=HardState(term, int(vote) if vote else None)))
        store.close()
        self.stage.start(broker)

    def do_broker(self, command: Command) -> None:
        """`broker 4`: a new broker that will join the group."""
        self.stage.add(int(command.words[0]), join=True)

    # Time

    def do_tick(self, command: Command) -> None:
        """`tick 1 10`, `tick all 3`: ticks, and nothing delivered."""
        for _ in range(int(command.words[1]) if len(command.words) > 1 else 1):
            for broker in self._brokers(command.words):
                self.stage.do(broker, Replica.tick)

    def do_wait(self, command: Command) -> None:
        """`wait 20`: ticks for everyone with all messages delivered; only changes are told."""
        self.stage.pass_time(int(command.words[0]))

    # The network

    def _messages(self, command: Command) -> list[Message]:
        chosen = [one for one in self.stage.network if (one.source, one.target) not in self.stage.held]
        for word in command.words:
            if "->" in word:
                source, target = word.split("->")
                chosen = [
                    message
                    for message in chosen
                    if source in ("", str(message.source)) and target in ("", str(message.target))
                ]
        if kind := command.values.get("kind"):
            chosen = [message for message in chosen if type(message).__name__ == kind]
        if pick := command.values.get("pick"):
            chosen = chosen[int(pick) - 1 : int(pick)]
        return chosen[: int(command.values.get("count", len(chosen)))]

    def do_deliver(self, command: Command) -> None:
        """`deliver [1->2] [kind=Append] [count=1] [pick=2]`: what is under way now, not what follows
        (unless there are more `rounds` than one)."""
        for _ in range(int(command.values.get("rounds", 1))):
            self.stage.deliver(self._messages(command))

    def do_drop(self, command: Command) -> None:
        """As `deliver`, but lost."""
        self.stage.drop(self._messages(command))

    def do_duplicate(self, command: Command) -> None:
        """As `deliver`, but put on the network once more."""
        self.stage.network += self._messages(command)

    def do_reorder(self, command: Command) -> None:
        """As `deliver`, but turned round: the last one comes first."""
        chosen = self._messages(command)
        places = [at for at, one in enumerate(self.stage.network) if any(one is other for other in chosen)]
        for place, message in zip(places, reversed(chosen), strict=True):
            self.stage.network[place] = message

    def do_network(self, command: Command) -> None:
        """`network`: what is under way."""
        self.stage.lines += [describe.message(message) for message in self._messages(command)]

    def do_stabilize(self, command: Command) -> None:
        """`stabilize [1,2]`: deliver until nothing is under way (among these)."""
        words = [word for word in command.words if word != "quiet"]
        among = set(numbers(words[0])) if words else None
        self.stage.stabilize(among)

    def do_hold(self, command: Command) -> None:
        """`hold 1->2`: what is sent there waits, until `release`."""
        self.stage.held |= {self._link(word) for word in command.words}

    def do_release(self, command: Command) -> None:
        """`release`: what was held may go on."""
        self.stage.held.clear()

    @staticmethod
    def _link(word: str) -> tuple[int, int]:
        source, target = word.split("->")
        return int(source), int(target)

    def do_partition(self, command: Command) -> None:
        """`partition 1,2 3`: brokers hear only those of their own side."""
        sides = [numbers(word) for word in command.words]
        self.stage.cut = {(one, other) for side in sides for one in side for other in self._not_in(side)}

    def _not_in(self, side: list[int]) -> list[int]:
        return [broker for broker in self.stage.nodes if broker not in side]

    def do_heal(self, command: Command) -> None:
        """`heal`: everyone hears everyone."""
        self.stage.cut.clear()

    # Clients

    def do_campaign(self, command: Command) -> None:
        """`campaign 1`: stand for election now."""
        self.stage.do(int(command.words[0]), lambda replica: replica.raft.campaign())

    def do_elect(self, command: Command) -> None:
        """`elect 1`: campaign, win, and let everyone know; told in one line."""
        stage, broker = self.stage, int(command.words[0])
        stage.silent = True
        self.do_campaign(command)
        stage.stabilize()
        stage.pass_time(stage.settings.heartbeat_ticks)
        stage.lines = [line for line in stage.lines if "becomes leader" in line]
        assert stage.replica(broker).raft.role is Role.LEADER

    def do_propose(self, command: Command) -> None:
        """`propose 1 a b [count=9] [bytes=100] [producer=7 sequence=0]`: each word is a batch of one."""
        broker, *words = command.words
        size_bytes = int(command.values.get("bytes", 0))
        words += [f"m{number}" for number in range(1, int(command.values.get("count", 0)) + 1)]
        producer = int(command.values.get("producer", -1))
        sequence = int(command.values.get("sequence", -1))
        frames = [
            encode_values(
                [word.encode().ljust(size_bytes, b".")],
                timestamp=0,
                codec=Codec.NONE,  # sizes are what a scenario says
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                sequence=sequence + number if sequence >= 0 else -1,
            )
            for number, word in enumerate(words)
        ]
        what = " ".join(words) if len(words) <= 6 else f"{words[0]} … {words[-1]}"
        done = self._told(int(broker), what)
        self.stage.do(int(broker), lambda replica: replica.append(frames, done))

    def _told(self, broker: int, what: str) -> Done:
        def done(outcome: Outcome) -> None:
            if isinstance(outcome, TalwegError):
                self.stage.answer(f"{broker} refuses {what}: {outcome.code}")
                return
            offsets = [at for one in outcome for at in range(one.first_offset, one.first_offset + one.count)]
            places = f" at offset {describe.span(offsets[0], offsets[-1])}" if offsets else ""
            again = " (written before)" if any(one.duplicate for one in outcome) else ""
            self.stage.answer(f"{broker} acknowledges {what}{places}{again}")

        return done

    def do_position(self, command: Command) -> None:
        """`position 1 reader=3`: replicate how far a consumer has read."""
        broker = int(command.words[0])
        positions = [Position(name, int(offset)) for name, offset in command.values.items()]
        done = self._told(broker, "the position")
        self.stage.do(broker, lambda replica: replica.commit_positions(positions, done))

    def do_configuration(self, command: Command) -> None:
        """`configuration 1 voters=1,2 [learners=4]`: propose a change."""
        broker = int(command.words[0])
        wanted = Configuration.of(
            numbers(command.values["voters"]), numbers(command.values.get("learners", ""))
        )
        self._refusable(broker, lambda replica: replica.raft.propose_configuration(wanted))

    def do_transfer(self, command: Command) -> None:
        """`transfer 1 2`: ask 1 to hand leadership to 2."""
        broker, target = map(int, command.words)
        self._refusable(broker, lambda replica: replica.raft.transfer(target))

    def _refusable(self, broker: int, action: Callable[[Replica], Refusal | None]) -> None:
        refusal = self.stage.do(broker, action)
        if isinstance(refusal, Refusal):
            self.stage.emit(f"{broker} refuses: {refusal.value}")

    def do_read(self, command: Command) -> None:
        """`read 1 [count=2]`: ask 1 to confirm that it leads, for so many reads at once."""
        broker = int(command.words[0])
        first = self._reads + 1
        self._reads += int(command.values.get("count", 1))
        told = [self.stage.told(broker, f"read {number}") for number in range(first, self._reads + 1)]

        def ask(replica: Replica) -> None:
            for done in told:
                replica.confirm_leadership(done)

        self.stage.do(broker, ask)

    def do_retain(self, command: Command) -> None:
        """`retain 1`: snapshot the state and drop the log that it stands for."""
        broker = int(command.words[0])
        self.stage.do(broker, Replica.snapshot_now)
        self.stage.do(broker, lambda replica: replica.retain(bytes_max=0, before_timestamp=None))

    # Disks and lives

    def do_disk(self, command: Command) -> None:
        """`disk 1 stop|full|fail`: what is written from now on waits, or fails. `disk 1 write`: what waits
        is written but not synced; `step`: the one job that waits is done; `run`: all is well again."""
        broker, state = int(command.words[0]), command.words[1]
        match state:
            case "stop" | "full" | "fail":
                self.stage.set_disk(broker, {"stop": "stopped", "fail": "failing"}.get(state, state))
            case "write":
                self.stage.write_job(broker)
            case "run":
                self.stage.set_disk(broker, None)
                self.stage.finish_job(broker)
            case "step" | "retry":
                self.stage.finish_job(broker)
            case _:
                raise ValueError(f"a disk cannot {state!r}")

    def do_crash(self, command: Command) -> None:
        """`crash 2 [torn=40]`: kill -9 and power cut in one; of what was not synced, so many bytes stay."""
        for broker in self._brokers(command.words):
            self.stage.crash(broker, int(command.values.get("torn", 0)))

    def do_corrupt(self, command: Command) -> None:
        """`corrupt 2 index=5`: one bit of that entry is no longer what it was."""
        broker, index = int(command.words[0]), int(command.values["index"])
        path, position = find_entry(self.stage.nodes[broker].files, index)
        self.stage.nodes[broker].files.flip(path, position)

    def do_restart(self, command: Command) -> None:
        """`restart 2`: start again on what the disk holds (after a crash, if it still runs)."""
        brokers = list(self.stage.nodes) if command.words == ["all"] else numbers(command.words[0])
        for broker in brokers:
            if self.stage.nodes[broker].up:
                self.stage.crash(broker)
            self.stage.start(broker)
            self._tell_what_it_found(broker)

    def do_wipe(self, command: Command) -> None:
        """`wipe 2`: a new, empty disk under the old name; the broker joins anew."""
        broker = int(command.words[0])
        self.stage.crash(broker)
        self.stage.nodes[broker].wipe()
        self.stage.start(broker, join=True)
        self._tell_what_it_found(broker)

    def _tell_what_it_found(self, broker: int) -> None:
        raft = self.stage.replica(broker).raft
        log = describe.span(raft.log.start_index + 1, raft.log.last_index) if raft.log.last_index else "empty"
        self.stage.emit(f"{broker} starts: {describe.hard_state(raft.hard_state)}, log {log}")

    def do_load(self, command: Command) -> None:
        """`load seed=1 kills=40 messages=400`: a producer writes while all brokers are killed again and
        again."""
        values = {name: int(value) for name, value in command.values.items()}
        load = Load(self.stage, Random(values["seed"]), values["messages"])
        load.run(values["kills"])
        self.stage.lines = load.report()

    # What is there

    def do_status(self, command: Command) -> None:
        """`status [1]`: every replica, and how a leader sees its followers."""
        for broker in self._brokers(command.words):
            raft = self.stage.replica(broker).raft
            log = raft.log
            parts = [f"{broker} {describe.ROLES[raft.role]}", describe.hard_state(raft.hard_state)]
            parts.append(f"log={log.start_index + 1}..{log.last_index}/{log.last_term}")
            parts.append(f"durable={raft.stable_index} commit={raft.commit_index}")
            self.stage.lines.append(" ".join(parts))
            if raft.role is Role.LEADER:
                self.stage.lines += [f"  {peer}: {progress}" for peer, progress in raft.progress.items()]

    def do_terms(self, command: Command) -> None:
        """`terms [1]`: the term of every entry in the log."""
        for broker in self._brokers(command.words):
            log = self.stage.replica(broker).raft.log
            held = [log.term(index) for index in range(log.start_index + 1, log.last_index + 1)]
            runs = [(term, len(list(run))) for term, run in groupby(held)]
            shown = [str(term) if many == 1 else " ".join([str(term)] * many) for term, many in runs]
            head = f"({log.start_index} dropped) " if log.start_index else ""
            self.stage.lines.append(f"{broker}: {head}{' '.join(shown)}")

    def do_show(self, command: Command) -> None:
        """`show 1`: the committed log as it is on disk, with offsets, and the positions."""
        for broker in self._brokers(command.words):
            replica = self.stage.replica(broker)
            self.stage.lines += [
                f"{broker}: {describe.entry(entry, offsets=True)}" for entry in committed(replica)
            ]
            if replica.state.positions:
                told = " ".join(
                    f"{name}={offset}" for name, offset in sorted(replica.state.positions.items())
                )
                self.stage.lines.append(f"{broker}: positions {told}")


def made_entry(index: int, term: int) -> Entry:
    """An entry of which only the place matters."""
    frame = stamp(encode_values([b""], timestamp=0), index=index, term=term, first_offset=index - 1)
    return Entry(index, term, Kind.RECORDS, frame)


def find_entry(files: SimulatedFiles, index: int) -> tuple[str, int]:
    """Where on the disk the last byte of an entry's frame lies."""
    for name in files.list(GROUP):
        if name.endswith(LOG_SUFFIX):
            content, position = files.content(f"{GROUP}/{name}"), 0
            while position < len(content):
                header = read_header(content, position)
                position += header.frame_bytes
                if header.index == index:
                    return f"{GROUP}/{name}", position - 1
    raise ValueError(f"entry {index} is not on the disk")


def committed(replica: Replica) -> Iterable[Entry]:
    """Every committed entry that is on disk and was not dropped."""
    raft = replica.raft
    index, last_index = raft.log.start_index + 1, min(raft.commit_index, raft.stable_index)
    while index <= last_index:
        for entry in replica.store.read(index, ENTRIES_MAX, last_index):
            yield entry
            index = entry.index + 1
