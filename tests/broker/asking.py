"""What tests ask of one broker, over the wire: messages, positions and holds, and its metrics."""

from broker.primary import Brokers
from scraped import Scraped
from talweg.http import Answer
from talweg.protocol.batches import FRAMES, Commit
from talweg.records import Codec, encode_values

PARTITION = "/v1/topics/lines/partitions/0"


class Asking:
    def __init__(self, brokers: Brokers, number: int) -> None:
        self.client = brokers.client
        self.endpoint = brokers.running[number].endpoint

    async def scrape(self) -> Scraped:
        response = await self.client.request(self.endpoint, "GET", "/metrics", seconds_max=10.0)
        return Scraped(response.body)

    async def produce(self, *values: bytes) -> None:
        frame = encode_values(values, timestamp=1_000, codec=Codec.NONE)
        path = f"{PARTITION}/records"
        await self.client.request(self.endpoint, "POST", path, frame, media_type=FRAMES, seconds_max=10.0)

    async def commit(self, commit: Commit) -> None:
        path = f"{PARTITION}/positions"
        await self.client.call(self.endpoint, "POST", path, Answer, commit, seconds_max=10.0)

    async def delete_position(self, query: str) -> None:
        path = f"{PARTITION}/positions?{query}"
        await self.client.call(self.endpoint, "DELETE", path, Answer, seconds_max=10.0)
