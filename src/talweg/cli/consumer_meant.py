"""Which consumer a command means, and in which partitions: found out before anything is changed."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from talweg.cli.complaints import failed
from talweg.errors import BadRequest, ConsumerNotFound, PartitionNotFound, TalwegError, Unavailable

if TYPE_CHECKING:
    from talweg.client.admin import Admin
    from talweg.client.description import ConsumerListing


def find(admin: "Admin", consumer: str, topic: str | None) -> "ConsumerListing":
    """Those of that name, or number, as far as leaders could be asked. Raises ConsumerNotFound; and
    Unavailable if it may be there, and nobody can say so."""
    found = admin.consumers(topic, partial=True)
    found[:] = [each for each in found if each.name == consumer]
    if not found:
        what = f"{'consumer' if consumer.isdecimal() else 'group'} {consumer}"
        try:
            found.check_whole()
        except Unavailable as error:
            raise Unavailable(f"whether there is a {what} is not known: {error}") from None
        where = "" if topic is None else f" of topic {topic}"
        raise ConsumerNotFound(f"there is no {what}{where}: talweg consumer list names all")
    return found


def meant(
    admin: "Admin", consumer: str, topic: str, partitions: Iterable[int] | None, *, create: bool = False
) -> tuple[str | int, list[int]]:
    """A group's name, or a number, and the partitions that were named, or all that it reads.

    Raises ConsumerNotFound for a group that is new, unless it may be, and PartitionNotFound.
    """
    try:
        found = find(admin, consumer, topic)
    except (ConsumerNotFound, Unavailable):
        if not create:
            raise
        return consumer, _named(admin, topic, partitions)
    if len(found) > 1:
        raise BadRequest(
            f"{consumer} is a group and a registered consumer of topic {topic}; only a program can say "
            f'which is meant, by "{consumer}" or {consumer}'
        )
    if found[0].group is not None:
        return consumer, _named(admin, topic, partitions)
    found.check_whole()  # a registered one reads all partitions, or a single one, which is to be seen
    reads = sorted(found[0].partitions)
    for number in partitions or ():
        if number not in reads:
            told = f"consumer {consumer} does not read partition {number} of topic {topic}, only"
            raise PartitionNotFound(f"{told} {', '.join(map(str, reads))}")
    return int(consumer), sorted(set(partitions)) if partitions else reads


def _named(admin: "Admin", topic: str, partitions: Iterable[int] | None) -> list[int]:
    """Those, or all that there are; raises PartitionNotFound."""
    count = len(admin.topic(topic).partitions)
    named = sorted(set(partitions)) if partitions else list(range(count))
    if named[-1] >= count:
        raise PartitionNotFound(f"topic {topic} has no partition {named[-1]}, only 0 to {count - 1}")
    return named


def change_each(numbers: Iterable[int], change: Callable[[int], object]) -> None:
    """One partition after the other. If one fails, it is said for which it was done before."""
    done: list[str] = []
    for number in numbers:
        try:
            change(number)
        except TalwegError as error:
            so_far = f"partition {', '.join(done)}" if done else "no partition"
            perhaps = f", perhaps for {number}" if error.retriable else ""
            raise failed(error, f"it was done for {so_far}{perhaps}, and for no other") from None
        done.append(str(number))
