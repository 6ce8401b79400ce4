"""The partitions that a broker carries, without its servers."""

import asyncio

from talweg.broker.hosting import Hosting
from talweg.errors import StorageError
from talweg.protocol.control import PartitionAssignment
from talweg.replication import ReplicaHost
from talweg.storage import MemoryStores


class Reluctant(MemoryStores):
    """A disk that fails when something is to be removed."""

    fails = True

    def delete(self, group: str) -> None:
        if self.fails:
            raise StorageError("the disk failed")
        super().delete(group)


def assignment(group: int) -> PartitionAssignment:
    return PartitionAssignment(
        topic="topic", partition=0, group=group, voters=(1,), partitions=1, replication=1
    )


def test_a_partition_that_could_not_be_deleted_is_still_carried_and_deleted_when_asked_again() -> None:
    async def test() -> None:
        stores = Reluctant()
        host = ReplicaHost(1, stores)
        await host.start()
        hosting = Hosting(host, (), lambda: None)
        await hosting.carry_out([assignment(5)], ())
        for _ in range(2):
            # What else there is to do is done; and the primary, and the next life, are told of it.
            await hosting.carry_out([assignment(6)], [5])
            assert tuple(hosting.partitions) == (5,)
            assert hosting.carried() == (assignment(5),)
            assert not hosting.is_complete
            assert hosting.reports() == ()
        stores.fails = False
        await hosting.carry_out([assignment(6)], [5])
        assert stores.groups() == {"topic-0": 6}
        assert tuple(hosting.partitions) == (6,)
        assert hosting.is_complete
        await host.close()

    asyncio.run(test())
