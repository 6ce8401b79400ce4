"""The client library by its documented names: `MyProducer`, `MyConsumer`, `ApiHandler`.

    with MyConsumer(["T1"]) as consumer, MyProducer(["T1"]) as producer:
        producer.produce("T1", "INFO started")
        print(consumer.consume("T1", wait_seconds=5).text)

It speaks the plain HTTP API, one message a request, with any manager or a gateway, and imports nothing heavy.
Failures are raised as the classes of `talweg.errors`.
"""

from myqueue.answers import Message, Partition, Produced
from myqueue.api_handler import ApiHandler
from myqueue.consumer import MyConsumer
from myqueue.producer import MyProducer

__all__ = ["ApiHandler", "Message", "MyConsumer", "MyProducer", "Partition", "Produced"]
