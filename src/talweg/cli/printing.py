"""Messages on standard output, each in a line of its own: as text, in base64, or as JSON."""

from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Final, Literal

from talweg.cli.message_line import encode_line
from talweg.cli.offsets import moment_text
from talweg.cli.output import flush, print_bytes, safe, shown
from talweg.client.message import Message

Format = Literal["text", "json", "base64"]


def print_messages(messages: Iterable[Message], form: Format, *, verbose: bool) -> None:
    """Print them, and let whoever reads see them at once."""
    line = _LINES[form]
    lines: Iterable[bytes]
    if verbose and form != "json":
        lines = (
            f"{_place(message)}\t".encode(errors="backslashreplace") + line(message) for message in messages
        )
    else:
        lines = map(line, messages)
    print_bytes(b"".join(text + b"\n" for text in lines))
    flush()


def _place(message: Message) -> str:
    """Everything beside the value, with tabs between."""
    headers = ",".join(f"{name}={shown(data)}" for name, data in message.headers)
    key = "" if message.key is None else shown(message.key)
    return "\t".join(
        (str(message.partition), str(message.offset), moment_text(message.timestamp), key, safe(headers))
    )


def _text(message: Message) -> bytes:
    return shown(message.value).encode()


def _base64(message: Message) -> bytes:
    return b64encode(message.value or b"")


_LINES: Final[dict[Format, Callable[[Message], bytes]]] = {
    "text": _text,
    "json": encode_line,
    "base64": _base64,
}
