"""A replica of a partition: a pysyncobj object whose replicated call writes a row; and its database."""

import threading
import time
from pathlib import Path

from pysyncobj import SyncObj, SyncObjConf, replicated_sync
from sqlalchemy import ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from bench.commands import Settings


class _Base(DeclarativeBase):
    """What SQLAlchemy wants its tables to have in common."""


class TopicRow(_Base):
    """A partition of a topic that this broker carries."""

    __tablename__ = "topic"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    partition_index: Mapped[int]


class LogRow(_Base):
    """A message."""

    __tablename__ = "log"

    id: Mapped[int] = mapped_column(primary_key=True)
    topic_id: Mapped[int] = mapped_column(ForeignKey("topic.id"))
    producer_id: Mapped[int]
    message: Mapped[str]
    timestamp: Mapped[float]


class Database:
    """A broker's SQLite file. With SQLite's own settings, a commit is durable."""

    def __init__(self, path: Path, *, write_ahead_log: bool) -> None:
        engine = create_engine(f"sqlite:///{path}")
        if write_ahead_log:
            with engine.begin() as connection:
                connection.exec_driver_sql("pragma journal_mode = wal")  # the file remembers it
        _Base.metadata.create_all(engine)
        self._sessions: sessionmaker[Session] = sessionmaker(engine)
        self._turn = threading.Lock()

    def add_topic(self, name: str, partition_index: int) -> int:
        """Enter a partition; its number in this database."""
        with self._turn, self._sessions() as session:
            row = TopicRow(name=name, partition_index=partition_index)
            session.add(row)
            session.commit()
            return row.id

    def add_log(self, topic_id: int, producer_id: int, message: str, timestamp: float) -> None:
        """One message, one insert, one commit."""
        with self._turn, self._sessions() as session:
            session.add(
                LogRow(topic_id=topic_id, producer_id=producer_id, message=message, timestamp=timestamp)
            )
            session.commit()

    def count(self) -> int:
        """How many messages there are."""
        with self._turn, self._sessions() as session:
            return session.query(LogRow).count()


class Partition(SyncObj):  # type: ignore[misc]
    """One of three replicas, each in a broker of its own."""

    def __init__(
        self, database: Database, topic_id: int, own: str, others: list[str], settings: Settings
    ) -> None:
        # Before the call: what comes after it, pysyncobj pickles when it compacts its log.
        self._database = database
        self._topic_id = topic_id
        super().__init__(own, others, SyncObjConf(**settings))

    @replicated_sync  # type: ignore[untyped-decorator]
    def add_log(self, producer_id: int, message: str, timestamp: float) -> None:
        """Called on one broker, carried out on all three."""
        self._database.add_log(self._topic_id, producer_id, message, timestamp)

    def produce(self, producer_id: int, message: str) -> None:
        """Return once the message is replicated, and applied here."""
        self.add_log(producer_id, message, time.time())
