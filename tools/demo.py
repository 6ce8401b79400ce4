"""The whole story in one command: `make demo`.

A cluster on this machine, the reference documents' five producers and three consumers, more logs with an
hour's history and a bad quarter of an hour in it, the pipelines over all of it on Spark, and the report. It
ends by itself; what it made stays in the directory that it names.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from talweg.client.producer import Producer
from talweg.testing.cluster import LocalCluster

ROOT = Path(__file__).resolve().parents[1]
MINUTES = 60
BAD = range(30, 36)  # minutes in which a good part of requests fail
PATHS = ("/", "/search", "/basket", "/pay", "/help")


def say(text: str, began: float) -> None:
    """A step, and when it began."""
    print(f"\n== {time.monotonic() - began:5.1f} s  {text}", flush=True)


def access_lines(dice: random.Random, begin: datetime) -> list[tuple[str, int]]:
    """An hour of requests, with their timestamps in microseconds."""
    lines = []
    for minute in range(MINUTES):
        for _ in range(dice.randint(30, 50)):
            moment = begin + timedelta(minutes=minute, seconds=dice.uniform(0, 60))
            failed = dice.random() < (0.4 if minute in BAD else 0.02)
            status = 503 if failed else dice.choice((200, 200, 200, 304, 404))
            clock = moment.strftime("%d/%b/%Y:%H:%M:%S +0000")
            host, path = f"192.0.2.{dice.randint(1, 40)}", dice.choice(PATHS)
            line = (
                f'{host} - - [{clock}] "GET {path} HTTP/1.1" {status} {dice.randint(90, 9000)} "-" "demo/1.0"'
            )
            lines.append((line, round(moment.timestamp() * 1e6)))
    lines += [("this line is in no format at all", lines[-1][1])] * 3
    return sorted(lines, key=lambda each: each[1])


def produce_history(servers: str) -> int:
    """More logs, to the topic `web`; returns how many lines."""
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=MINUTES + 1)
    lines = access_lines(random.Random(5), begin)  # noqa: S311 - the same story every time
    with Producer(servers) as producer:
        for line, timestamp in lines:
            producer.send("web", line, timestamp=timestamp)
    return len(lines)


def run(*arguments: str, environment: dict[str, str]) -> None:
    """One command of the story; its failure is the demo's."""
    code = subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, check=False).returncode
    if code:
        sys.exit(code)


def main() -> None:
    """From nothing to a report."""
    began = time.monotonic()
    archive = Path(tempfile.mkdtemp(prefix="talweg-demo-"))
    say("a cluster: three brokers, a primary, two read-only managers", began)
    with LocalCluster() as cluster:
        environment = {
            # In so short a run Spark is mostly busy compiling itself: less of that saves a quarter of it.
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
            **os.environ,
            "TALWEG_URL": cluster.servers,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        say("five producers and three consumers", began)
        run("-m", "myqueue.setups", "5P3C", environment=environment)
        say(f"{produce_history(cluster.servers):,} more lines: an hour of a web server's log", began)
        say("the pipelines, on Spark", began)
        pipeline = ("-m", "talweg.cli", "pipeline")
        run(*pipeline, "run", "--archive", str(archive), environment=environment)
        say("the report", began)
        run(*pipeline, "report", "--archive", str(archive), environment=environment)
    say(f"done; everything is in {archive}", began)


if __name__ == "__main__":
    main()
