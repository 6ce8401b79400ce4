"""`ApiHandler`: every call of the plain API as a method."""

import contextlib
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from myqueue.answers import Message, Partition, Produced, message_of, partition_of
from myqueue.managers import Broker, Managers
from talweg.errors import TopicExists, TopicNotFound

TIMEOUT_SECONDS: Final = 60.0  # for a call with all its repetitions


class ApiHandler:
    """Talks to the managers of a cluster. Safe to use from many threads.

    `broker` is HOST:PORT of a manager or a gateway, or several of them (a list, or separated by commas);
    without it TALWEG_URL says where, or it is 127.0.0.1:8000. What fails only for now is repeated for
    `timeout` seconds in all, at another manager if there is one.
    """

    def __init__(self, broker: Broker = None, *, timeout: float = TIMEOUT_SECONDS) -> None:
        self.managers = Managers(broker, timeout)

    # Topics

    def create_topic(
        self, name: str, *, partitions: int | None = None, replication: int | None = None
    ) -> int:
        """Create a topic; how many partitions it has. Raises TopicExists, BadTopicName, TooFewBrokers."""
        given: dict[str, object] = {"name": name, "partitions": partitions, "replication": replication}
        answer = self.managers.ask("POST", "/topics", given, done_before=TopicExists)
        return int(answer["partitions"]) if answer else len(self.list_partitions(name))

    def ensure_topic(self, name: str) -> None:
        """Create a topic with the cluster's defaults unless it is there."""
        with contextlib.suppress(TopicExists):
            self.create_topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with everything in it. Raises TopicNotFound."""
        self.managers.ask("DELETE", f"/topics/{quote(name, safe='')}", done_before=TopicNotFound)

    def list_topics(self) -> list[str]:
        """The names of all topics, in order; an empty list if there are none."""
        try:
            return list(self.managers.ask("GET", "/topics")["topics"])
        except TopicNotFound:
            return []

    def list_partitions(self, topic: str) -> list[Partition]:
        """A topic's partitions, by number. Raises TopicNotFound."""
        answer = self.managers.ask("GET", f"/topics/{quote(topic, safe='')}/partitions")
        return [partition_of(each) for each in answer["partitions"]]

    # Producers

    def register_producer(self, topic: str) -> int:
        """A new producer's number. Its topic is created if it is not there."""
        return int(self.managers.ask("POST", "/producer/register", {"topic": topic})["producer_id"])

    def produce(
        self,
        topic: str,
        producer_id: int,
        message: str,
        *,
        partition: int | None = None,
        key: str | None = None,
        sequence: int | None = None,
        deadline: float | None = None,  # on the monotonic clock, in place of the handler's own timeout
    ) -> Produced:
        """Produce a message. With a sequence, which must grow with each message of a producer in a
        partition, an answer that was lost is asked for again and the message is there once; without,
        Unavailable or Undecided says that it may be there or not."""
        given: dict[str, object] = {"topic": topic, "producer_id": producer_id, "message": message}
        given |= {"partition": partition, "key": key, "sequence": sequence}
        answer = self.managers.ask(
            "POST", "/producer/produce", given, repeatable=sequence is not None, deadline=deadline
        )
        return Produced(answer["partition"], answer["offset"])

    def producer_heartbeat(self, producer_id: int) -> None:
        """Say that a producer lives. Raises ProducerNotFound."""
        self.managers.ask("POST", "/producer/heartbeat", {"id": producer_id})

    # Consumers

    def register_consumer(
        self, topic: str, *, partition: int | None = None, start: str | int = "earliest"
    ) -> int:
        """A new consumer's number; of the topic, or of one partition of it. It starts with the `earliest`
        message, with the `latest` (what comes from now on), or at a moment: microseconds since 1970, or
        ISO 8601. Raises TopicNotFound and PartitionNotFound."""
        given: dict[str, object] = {"topic": topic, "partition": partition, "start": start}
        return int(self.managers.ask("POST", "/consumer/register", given)["consumer_id"])

    def consume(
        self, topic: str, consumer_id: int, *, partition: int | None = None, wait_seconds: float = 0.0
    ) -> Message:
        """The next message; it is not given to this consumer again. Raises NoMessage when everything is read,
        also after the wait, and Unavailable when the answer was lost, and perhaps a message with it (which
        `MyConsumer` sees to)."""
        given = consume_parameters(topic, consumer_id, partition, wait_seconds)
        deadline = self.managers.deadline()
        answer = self.managers.ask_once(
            "GET", "/consumer/consume", given, deadline=deadline, wait_seconds=wait_seconds
        )
        return message_of(topic, answer)

    def size(self, topic: str, consumer_id: int, *, partition: int | None = None) -> int:
        """How many messages the consumer has not read."""
        return int(self._size(topic, consumer_id, partition)["size"])

    def sizes(self, topic: str, consumer_id: int) -> dict[int, int]:
        """How many messages the consumer has not read, by partition."""
        sizes = self._size(topic, consumer_id, None)["partitions"]
        return {int(partition): size for partition, size in sizes.items()}

    def _size(self, topic: str, consumer_id: int, partition: int | None) -> dict[str, Any]:
        given: dict[str, object] = {"topic": topic, "consumer_id": consumer_id, "partition": partition}
        return self.managers.ask("GET", "/size", given)

    def consumer_heartbeat(self, consumer_id: int) -> None:
        """Say that a consumer lives. Raises ConsumerNotFound."""
        self.managers.ask("POST", "/consumer/heartbeat", {"id": consumer_id})

    # Administration: answers are as in the plain API

    def health(self) -> dict[str, Any]:
        """What the manager that is asked says of itself: role, version, whether it is healthy."""
        return self.managers.ask("GET", "/")

    def list_brokers(self) -> list[dict[str, Any]]:
        """All brokers: id, endpoint, status, last_heartbeat, partitions, leaders."""
        return list(self.managers.ask("GET", "/admin/brokers")["brokers"])

    def list_producers(self) -> list[dict[str, Any]]:
        """All producers: id, topic, status (active or inactive), last_heartbeat."""
        return list(self.managers.ask("GET", "/admin/producers")["producers"])

    def list_consumers(self) -> list[dict[str, Any]]:
        """All consumers: id, topic, status (active or inactive), last_heartbeat."""
        return list(self.managers.ask("GET", "/admin/consumers")["consumers"])

    def add_broker(self, endpoint: str) -> int:
        """Add a broker, which brokers do themselves; its number."""
        return int(self.managers.ask("POST", "/admin/broker/add", {"endpoint": endpoint})["broker_id"])

    def remove_broker(self, broker_id: int) -> None:
        """Move everything away from a broker, then remove it."""
        self._change_broker("remove", broker_id)

    def activate_broker(self, broker_id: int) -> None:
        """Let a broker have partitions and lead."""
        self._change_broker("activate", broker_id)

    def deactivate_broker(self, broker_id: int) -> None:
        """Give a broker no new partitions, and let others lead."""
        self._change_broker("deactivate", broker_id)

    def _change_broker(self, change: str, broker_id: int) -> None:
        self.managers.ask("POST", f"/admin/broker/{change}", {"broker_id": broker_id})

    # Its end

    def close(self) -> None:
        """Let go of all connections."""
        self.managers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def consume_parameters(
    topic: str, consumer_id: int, partition: int | None, wait_seconds: float
) -> dict[str, object]:
    """What a consume asks for."""
    wait_ms = round(wait_seconds * 1000) or None
    return {"topic": topic, "consumer_id": consumer_id, "partition": partition, "wait_ms": wait_ms}
