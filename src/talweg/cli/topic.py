"""`talweg topic`: topics, and messages in and out of them."""

from typing import Annotated

import typer

from talweg.cli import options
from talweg.cli.admin import open_admin
from talweg.cli.confirming import confirm
from talweg.cli.offsets import read_range
from talweg.cli.options import NEGATIVE_ARGUMENTS, TIMEOUT
from talweg.cli.output import counted, print_json, print_lines, print_table
from talweg.errors import BadRequest, TopicExists

app = typer.Typer(help="Topics, and messages in and out of them.", no_args_is_help=True)

_MS_PER_HOUR = 3_600_000
_HOURS_MAX = 1_000_000  # more than a century


@app.command("create")
def create_topic(
    topic: options.Topic,
    *,
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="Default: as the managers' settings say.", min=1)
    ] = None,
    replication: Annotated[
        int | None,
        typer.Option("--replication", help="Replicas of each partition. Default: likewise.", min=1),
    ] = None,
    retention_hours: Annotated[
        float | None,
        typer.Option(
            "--retention-hours",
            help="How long messages are kept.",
            metavar="HOURS",
            min=0.001,
            max=_HOURS_MAX,
        ),
    ] = None,
    retention_bytes: Annotated[
        int | None,
        typer.Option("--retention-bytes", help="How much is kept of a partition.", metavar="BYTES", min=1),
    ] = None,
    exists_ok: Annotated[
        bool, typer.Option("--exists-ok", help="One that is there already is fine.")
    ] = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Create a topic."""
    created = True
    with open_admin(servers, timeout) as admin:
        try:
            count = admin.create_topic(
                topic,
                partitions,
                replication,
                retention_ms=None if retention_hours is None else round(retention_hours * _MS_PER_HOUR),
                retention_bytes=retention_bytes,
            )
        except TopicExists:
            if not exists_ok:
                raise
            created, count = False, len(admin.topic(topic).partitions)
    if as_json:
        print_json({"topic": topic, "partitions": count, "created": created})
    else:
        done = "created" if created else "is there"
        print_lines([f"topic {topic} {done} with {counted(count, 'partition')}"])


@app.command("list")
def list_topics(
    *,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """The names of all topics."""
    with open_admin(servers, timeout) as admin:
        names = admin.topics()
    if as_json:
        print_json({"topics": names})
    else:
        print_lines(names)


@app.command("describe")
def describe_topic(
    topic: options.Topic,
    *,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """A topic's partitions: who leads them, who has replicas, which offsets they hold."""
    with open_admin(servers, timeout) as admin:
        found = admin.topic(topic)
    if as_json:
        print_json(found)
    else:
        print_table(
            ("partition", "leader", "replicas", "start", "end", "messages"),
            [
                (
                    part.partition,
                    part.leader,
                    ",".join(map(str, part.replicas)),
                    part.start_offset,
                    part.next_offset,
                    part.size,
                )
                for part in found.partitions
            ],
        )
    found.check_whole()  # behind what is known, so that a script is told what it does not see


@app.command("delete")
def delete_topic(
    topic: options.Topic,
    *,
    yes: options.Yes = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Delete a topic with all of its messages."""
    with open_admin(servers, timeout) as admin:
        size = admin.topic(topic).size
        messages = "an unknown number of messages" if size is None else counted(size, "message")
        confirm(f"Delete topic {topic} with {messages}?", yes=yes)
        admin.delete_topic(topic)
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        print_lines([f"topic {topic} deleted"])


@app.command("produce")
def produce(
    topic: options.Topic,
    messages: Annotated[
        list[str] | None,
        typer.Argument(
            help="Messages. Without any: the lines of standard input.", metavar="MESSAGE", show_default=False
        ),
    ] = None,
    *,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Of every message.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="Of every message; may be given again.", metavar="NAME=VALUE"),
    ] = None,
    partition: options.ToPartition = None,
    create: options.Create = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Send messages to a topic; done when a majority of replicas has them on disk."""
    # Only here: Arrow, which other commands do without.
    from talweg.cli.producing import Sending, read_headers, send_messages  # noqa: PLC0415

    wish = Sending(
        topic=topic, key=key, headers=read_headers(header or ()), partition=partition, as_json=as_json
    )
    send_messages(wish, messages, servers, timeout, create=create)


@app.command("consume", context_settings=NEGATIVE_ARGUMENTS)
def consume(
    topic: options.Topic,
    offsets: options.Offsets = "start",
    *,
    partition: options.Partition = None,
    follow: options.Follow = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="So many messages at most.", min=1, show_default=False)
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Go on where this group was, and commit what is printed.",
            show_default=False,
        ),
    ] = None,
    form: options.MessageFormat = "text",
    verbose: options.Verbose = False,
    servers: options.Servers = None,
    timeout: options.Timeout = TIMEOUT,
    as_json: options.Json = False,
) -> None:
    """Print the messages of a topic, a line each: those that are there now, or, with -f, for ever."""
    if group is not None and offsets != "start":
        raise BadRequest("offsets and --group: expected one of them, since a group knows where it is")
    wanted = read_range(offsets)
    # Only here: Arrow, which other commands do without.
    from talweg.cli.consuming import Wish, print_group, print_range  # noqa: PLC0415

    wish = Wish(
        topic=topic,
        wanted=wanted,
        partitions=partition,
        follow=follow,
        limit=limit,
        form="json" if as_json else form,
        verbose=verbose,
        servers=servers,
        timeout=timeout,
    )
    if group is not None:
        print_group(wish, group)
        return
    with open_admin(servers, timeout) as admin:
        print_range(wish, admin)
