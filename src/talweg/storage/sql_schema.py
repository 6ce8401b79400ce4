"""The tables in which `talweg.storage.sql` keeps logs: what each column holds, and why.

    talweg_groups     one row for each log: whose it is, its hard state, and where it begins
    talweg_entries    one row for each entry: what is searched for, but not its bytes
    talweg_snapshots  one row for each snapshot kept, without its bytes
    talweg_parts      the bytes: frames of entries, and states of snapshots
    talweg_deleted    one row for each log that was deleted but still has rows in the three before

The hard state stands in the group's row and not in a table of its own: every write has to touch that
row anyway, to make sure that nobody else writes this log, and so one statement does both.

Primary keys are the only indexes. With index, offsets, bytes and the newest timestamp all grow together,
so whatever is looked for is found by a few looks at entries by their index. Further indexes would cost
every write, and would give query planners, before they have statistics, ways to be badly wrong: with
them, MariaDB and PostgreSQL both walked through whole logs to find one entry.
"""

from enum import IntEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
)
from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY
from sqlalchemy.types import TypeDecorator, TypeEngine

FORMAT: Final = 1  # of the rows; a log with a higher one was written by a newer Talweg
GROUP_NAME_BYTES_MAX: Final = 255
# MariaDB and MySQL refuse a statement, and a result row, over max_allowed_packet, 16 MiB by default. A
# row's bytes are escaped on the way, at worst to double their length. So rows hold 4 MiB at most.
PART_BYTES: Final = 4 << 20
PACKET_BYTES_MIN: Final = 2 * PART_BYTES + (64 << 10)

_MYSQL: Final = ("mysql", "mariadb")
_Blob: Final = LargeBinary().with_variant(LONGBLOB(), *_MYSQL)


class GroupName(TypeDecorator[str]):
    """Text that is equal only when every byte is: MySQL's own text types overlook case and final spaces."""

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Bytes where text would be compared loosely."""
        if dialect.name in _MYSQL:
            return dialect.type_descriptor(VARBINARY(GROUP_NAME_BYTES_MAX))
        return dialect.type_descriptor(String(GROUP_NAME_BYTES_MAX))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """On the way in."""
        return value.encode() if value is not None and dialect.name in _MYSQL else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """On the way out."""
        return bytes(value).decode() if value is not None and dialect.name in _MYSQL else value


class Owner(IntEnum):
    """Whose bytes a row of talweg_parts holds."""

    ENTRY = 0
    SNAPSHOT = 1


metadata: Final = MetaData()

groups: Final = Table(
    "talweg_groups",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=True),
    Column("name", GroupName, nullable=False, unique=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("format", SmallInteger, nullable=False),
    # The fence. `opening` counts how often the log was opened: only the last to open it may write.
    # `writes` counts transactions: a writer that lost its connection learns what became of the last.
    Column("opening", BigInteger, nullable=False),
    Column("writes", BigInteger, nullable=False),
    # The hard state; term is null until it is written for the first time.
    Column("term", BigInteger),
    Column("vote", BigInteger),
    Column("recovering", Boolean, nullable=False),
    # Where the log begins: the entry before the first one kept, as that entry's row would have it.
    Column("start_index", BigInteger, nullable=False),
    Column("start_term", BigInteger, nullable=False),
    Column("start_term_index", BigInteger, nullable=False),
    Column("start_configuration_index", BigInteger, nullable=False),
    Column("start_offset", BigInteger, nullable=False),
    Column("start_position", BigInteger, nullable=False),
    Column("start_timestamp", BigInteger, nullable=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
    # A number that was given out is not given out again: otherwise a process that missed the deletion of
    # a group might write into the one that came after it.
    sqlite_autoincrement=True,
)

entries: Final = Table(
    "talweg_entries",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("entry_index", BigInteger, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    # The first entry of the same term, dropped or not: the terms of a log are found by leaps.
    Column("term_index", BigInteger, nullable=False),
    # The last configuration entry up to and including this one, dropped or not; 0: none. Likewise.
    Column("configuration_index", BigInteger, nullable=False),
    Column("kind", SmallInteger, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),  # == first_offset of the next entry
    Column("last_timestamp", BigInteger, nullable=False),  # the greatest in this frame
    # The greatest in this frame and all before it. It never falls from entry to entry, so the first
    # entry that reaches a timestamp can be searched for, however disorderly the producers' clocks are.
    Column("newest_timestamp", BigInteger, nullable=False),
    Column("frame_bytes", Integer, nullable=False),
    # Bytes of all frames ever appended up to the end of this one: the log's size by a subtraction.
    Column("next_position", BigInteger, nullable=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
    sqlite_with_rowid=False,  # the rows themselves in the order of the key, as InnoDB has them anyway
)

snapshots: Final = Table(
    "talweg_snapshots",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("entry_index", BigInteger, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("next_position", BigInteger, nullable=False),
    Column("newest_timestamp", BigInteger, nullable=False),
    Column("configuration", _Blob, nullable=False),
    Column("checksum", BigInteger, nullable=False),  # CRC-32C of the configuration and the state
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

parts: Final = Table(
    "talweg_parts",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("owner", SmallInteger, primary_key=True, autoincrement=False),
    Column("entry_index", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True, autoincrement=False),  # from 0; nearly always the only one
    Column("bytes", _Blob, nullable=False),  # at most PART_BYTES
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

deleted: Final = Table(
    "talweg_deleted",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
