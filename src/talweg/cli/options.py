"""Options and arguments that many subcommands share, and how they are explained."""

from typing import Annotated, Literal

import typer

from talweg.cli.completion import complete_broker, complete_consumer, complete_topic

Servers = Annotated[
    str | None,
    typer.Option(
        "--servers",
        help="Managers to ask, with commas between them. Variable: TALWEG_URL. Default: "
        "http://127.0.0.1:8000.",
        metavar="URLS",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one document, or one object a line.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", help="How long to wait for the cluster.", metavar="SECONDS", min=0.1, max=3600),
]
TIMEOUT = 15.0
Topic = Annotated[
    str, typer.Argument(help="The topic.", metavar="TOPIC", autocompletion=complete_topic, show_default=False)
]
Consumer = Annotated[
    str,
    typer.Argument(
        help="A group's name, or a registered consumer's number.",
        metavar="CONSUMER",
        autocompletion=complete_consumer,
        show_default=False,
    ),
]
Partition = Annotated[
    list[int] | None,
    typer.Option(
        "--partition", "-p", help="Only this partition; may be given again.", min=0, show_default=False
    ),
]
BrokerNumber = Annotated[
    int,
    typer.Argument(
        help="The broker's number.",
        metavar="BROKER",
        min=0,
        autocompletion=complete_broker,
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

# `-10` is an argument, not an option. What is neither is refused where it is read.
NEGATIVE_ARGUMENTS = {"ignore_unknown_options": True}
FileFormat = Annotated[
    Literal["lines", "json", "parquet"] | None,
    typer.Option("--format", help="Default: as the suffix says.", show_default=False),
]
MessageFormat = Annotated[
    Literal["text", "json", "base64"],
    typer.Option("--format", help="How a value is shown. Text that is not UTF-8 is escaped."),
]
ToPartition = Annotated[
    int | None,
    typer.Option("--partition", "-p", help="Everything goes there.", min=0, show_default=False),
]
Create = Annotated[bool, typer.Option("--create", help="Create the topic if it is not there.")]
Offsets = Annotated[
    str,
    typer.Argument(
        help="From where, or from where to where: start, end, 100, -10 (the last ten), 100:200, "
        "@2026-01-31T12:00 (UTC, unless it has a zone), or two of them with a colon between.",
        metavar="OFFSETS",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until interrupted.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Before each value: partition, offset, time, key, headers, with tabs between."
    ),
]
