"""A copy of the metadata in memory, kept up by following the store's changes. Every manager has one."""

from talweg.metadata.model import Assignment, Broker, Consumer, Lease, Producer, RemovedTopic, Topic
from talweg.metadata.store import Changes, MetadataStore


def fetch_changes(store: MetadataStore, since: int) -> list[Changes]:
    """All that changed after that version, to be applied in order and, lest a reader find half of it, in
    one go. Blocks: for a thread."""
    pages = [store.changes(since)]
    while pages[-1].restart or pages[-1].more:
        pages.append(store.changes(pages[-1].version))
    return pages


class MetadataCopy:
    """What the store held at `version`. Belongs to one thread, or one event loop."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.version = 0
        self.topics: dict[str, Topic] = {}
        self.assignments: dict[str, dict[int, Assignment]] = {}  # by topic and partition
        self.brokers: dict[int, Broker] = {}
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.removed: dict[int, RemovedTopic] = {}  # by incarnation; the store forgets the oldest

    def follow(self, store: MetadataStore) -> bool:
        """Catch up with the store; whether anything changed. Blocks."""
        before = self.version
        for changes in fetch_changes(store, before):
            self.apply(changes)
        return self.version != before

    def apply(self, changes: Changes) -> None:
        """Take in one answer of the store."""
        if changes.restart:
            self._forget()
        for removed in changes.removed:
            self._remove(removed)
        for assignment in changes.assignments:
            self.assignments.setdefault(assignment.topic, {})[assignment.partition] = assignment
        self.topics.update((topic.name, topic) for topic in changes.topics)
        self.brokers.update((broker.id, broker) for broker in changes.brokers)
        self.producers.update((producer.id, producer) for producer in changes.producers)
        self.consumers.update((consumer.id, consumer) for consumer in changes.consumers)
        self.lease = changes.lease
        self.version = changes.version

    def _forget(self) -> None:
        self.topics.clear()
        self.assignments.clear()
        self.brokers.clear()
        self.producers.clear()
        self.consumers.clear()
        self.removed.clear()

    def _remove(self, removed: RemovedTopic) -> None:
        self.removed[removed.incarnation] = removed
        if (topic := self.topics.get(removed.name)) and topic.incarnation == removed.incarnation:
            del self.topics[removed.name]
        partitions = self.assignments.get(removed.name, {})
        if any(assignment.incarnation in removed.groups for assignment in partitions.values()):
            del self.assignments[removed.name]
        for clients in (self.producers, self.consumers):
            gone = [n for n, client in clients.items() if client.topic_incarnation == removed.incarnation]
            for number in gone:
                del clients[number]
