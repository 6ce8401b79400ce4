"""Lines of every format, pretty and ugly, come out as typed columns, or with an error that says why."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from pipeline.made import frame, message
from talweg.pipeline.formats import PARAMETERS_MAX
from talweg.pipeline.lines import BYTES_MAX, lines_of

pytestmark = pytest.mark.xdist_group("spark")


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


PRODUCED = at(2026, 1, 31, 12)
COMBINED = (
    '203.0.113.9 - alice [31/Jan/2026:11:59:58 +0100] "GET /a?b=1 HTTP/1.1" 503 2326 '
    '"http://there/" "Agent \\"7\\" (x)"'
)
COMBINED_FIELDS = {
    "user": "alice",
    "method": "GET",
    "path": "/a?b=1",
    "protocol": "HTTP/1.1",
    "status": "503",
    "bytes": "2326",
    "referrer": "http://there/",
    "agent": 'Agent \\"7\\" (x)',
}
PARAMETERS = " ".join(f'{n}=""' for n in range(PARAMETERS_MAX + 1))
# The line, and what is to come of it; what is not named is not looked at.
# ruff: noqa: E501 - lines of logs are as long as they are
UNDERSTOOD: dict[str, tuple[str | bytes, dict[str, Any]]] = {
    "the document's own": (
        "21:52:23\tINFO\t\tP1-1\t\tT1",
        {
            "format": "reference",
            "time": at(2026, 1, 30, 21, 52, 23),
            "level": "INFO",
            "program": "P1",
            "message": "",
            "fields": {"tag": "P1-1", "log_topic": "T1"},
        },
    ),
    "the document's with words": (
        "11:00:01\tWARN request 5 took 19 ms\tP1-2\tT2\n",
        {"time": at(2026, 1, 31, 11, 0, 1), "level": "WARN", "message": "request 5 took 19 ms"},
    ),
    "the document's without a level": (
        "1:02:03\tINFORMED guests\tnotag\tT2",
        {"time": at(2026, 1, 31, 1, 2, 3), "level": None, "message": "INFORMED guests", "program": None},
    ),
    "what a producer sends of it": (
        "ERROR request 9: connection reset",
        {"format": "plain", "time": PRODUCED, "level": "ERROR", "message": "request 9: connection reset"},
    ),
    "a level alone": ("info", {"level": "INFO", "message": ""}),
    "a level in brackets": ("[Warning]: disk", {"level": "WARN", "message": "disk"}),
    "python's logging": (
        "2026-01-31 11:22:33,456 CRITICAL out of paper",
        {"time": at(2026, 1, 31, 11, 22, 33, 456000), "level": "FATAL", "message": "out of paper"},
    ),
    "a logger's with a name": (
        "2026-01-31T11:22:33Z ERROR db: connection refused",
        {"format": "plain", "level": "ERROR", "host": None, "message": "db: connection refused"},
    ),
    "syslog of a host that is called like a level": (
        "<11>2026-01-31T11:22:33Z error db: refused",
        {"format": "syslog", "level": "ERROR", "host": "error", "program": "db", "message": "refused"},
    ),
    "a stack trace": (
        "2026-01-31 11:22:33 ERROR boom\n\tat a.B(C.java:1)\n\tat d\n",
        {"format": "plain", "level": "ERROR", "message": "boom\n\tat a.B(C.java:1)\n\tat d"},
    ),
    "syslog of several lines": ("Jan 31 11:00:00 h app: one\ntwo", {"program": "app", "message": "one\ntwo"}),
    "syslog 5424 of several lines": (
        "<11>1 2026-01-31T11:00:00Z h app - - - one\ntwo",
        {"level": "ERROR", "message": "one\ntwo"},
    ),
    "pino": (
        '{"level":40,"time":1769857353000,"pid":1,"hostname":"h","msg":"slow"}',
        {"level": "WARN", "time": at(2026, 1, 31, 11, 2, 33), "host": "h", "message": "slow"},
    ),
    "json": (
        '{"ts":"2026-01-31T10:00:00.5+02:00","severity":"err","hostname":"h","app":"a","msg":"m","n":{"x":[1]}}',
        {
            "format": "json",
            "time": at(2026, 1, 31, 8, 0, 0, 500000),
            "level": "ERROR",
            "host": "h",
            "program": "a",
            "message": "m",
            "fields": {"n": '{"x":[1]}'},
        },
    ),
    "json with milliseconds": ('{"time":1767225600123}', {"time": at(2026, 1, 1, 0, 0, 0, 123000)}),
    "json with seconds": ('{"time":1767225600.25}', {"time": at(2026, 1, 1, 0, 0, 0, 250000)}),
    "json with nanoseconds": ('{"time":1767225600123456789}', {"time": at(2026, 1, 1, 0, 0, 0, 123456)}),
    "json without anything": ("{}", {"time": PRODUCED, "level": None, "fields": {}}),
    "json with a name twice": ('{"a":"1","a":"2","level":20}', {"format": "json", "level": "INFO"}),
    "json with nulls": ('  {"time":null,"msg":null,"a":null}  ', {"time": PRODUCED, "fields": {}}),
    "syslog of 2009": (
        b'<165>1 2026-01-31T10:00:00.000003-07:00 host app 12 ID47 [x@1 a="b" a="c" host="z"] \xef\xbb\xbfText',
        {
            "format": "syslog5424",
            "time": at(2026, 1, 31, 17, 0, 0, 3),
            "level": "INFO",
            "host": "host",
            "program": "app",
            "message": "Text",
            "fields": {
                "process": "12",
                "kind": "ID47",
                "structured_data": '[x@1 a="b" a="c" host="z"]',
                "a": "b",
                "host": "z",
            },
        },
    ),
    "syslog of 2009 that says nothing": (
        "<0>1 - - - - - -",
        {"time": PRODUCED, "level": "FATAL", "host": None, "program": None, "fields": {}},
    ),
    "syslog of 2001": (
        "<34>Jan  1 22:14:15 box su[77]: 'su root' failed",
        {
            "format": "syslog",
            "time": at(2026, 1, 1, 22, 14, 15),
            "level": "FATAL",
            "host": "box",
            "program": "su",
            "message": "'su root' failed",
            "fields": {"process": "77"},
        },
    ),
    "syslog of last year": ("Dec 31 23:59:59 box cron: x", {"time": at(2025, 12, 31, 23, 59, 59), "level": None}),
    "syslog of a leap day": ("<30>Feb 29 10:00:00 box x: y", {"error": "time: 'Feb 29 10:00:00' is none"}),
    "access, combined": (
        COMBINED,
        {
            "format": "access",
            "time": at(2026, 1, 31, 10, 59, 58),
            "level": "ERROR",
            "host": "203.0.113.9",
            "message": "GET /a?b=1 HTTP/1.1",
            "fields": COMBINED_FIELDS,
        },
    ),
    "access, common, without a length": (
        '::1 - - [31/Jan/2026:11:00:00 +0000] "HEAD / HTTP/1.0" 304 -',
        {"host": "::1", "level": "INFO", "fields": {"method": "HEAD", "path": "/", "protocol": "HTTP/1.0", "status": "304"}},
    ),
    "access of one who speaks no HTTP": (
        r'1.2.3.4 - - [31/Jan/2026:11:00:00 +0000] "\x16\x03\x01" 400 157 "-" "-"',
        {"level": "WARN", "message": r"\x16\x03\x01", "fields": {"status": "400", "bytes": "157"}},
    ),
    "json with several names for one thing": (
        '{"message":"login ok","event":"user.login","name":"alice","app":"web","text":"t","severity":"gold","lvl":"err"}',
        {
            "level": "ERROR",
            "program": "web",
            "message": "login ok",
            "fields": {"event": "user.login", "name": "alice", "text": "t", "severity": "gold"},
        },
    ),
    "json with a name that says nothing": ('{"message":"","msg":"m"}', {"message": "m", "fields": {}}),
    "json with a date and a time of day": (
        '{"time":"9:08:07.5","date":"2026-01-30","day":"2"}',
        {"time": at(2026, 1, 30, 9, 8, 7, 500000), "fields": {"day": "2"}},
    ),
    "json with a date beside a time": (
        '{"ts":"2026-01-31T10:00:00Z","date":"2026-01-30"}',
        {"time": at(2026, 1, 31, 10), "fields": {"date": "2026-01-30"}},
    ),
    "json with a date alone": ('{"date":"2026-01-30"}', {"time": at(2026, 1, 30)}),
    "json with an offset of hours": ('{"time":"2026-01-31T10:00:00+02"}', {"time": at(2026, 1, 31, 8)}),
    "json behind a byte order mark": ('\ufeff\t{"a":"1"}', {"format": "json", "fields": {"a": "1"}}),
    "a level behind a byte order mark": ("\ufeffINFO x", {"level": "INFO", "message": "x"}),
    "syslog with one blank before the day": ("<34>Jan 1 22:14:15 box su: x", {"time": at(2026, 1, 1, 22, 14, 15), "program": "su"}),
    "syslog without a tag": (
        "Jan 31 11:00:00 box last message repeated 3 times",
        {"format": "syslog", "host": "box", "program": None, "message": "last message repeated 3 times"},
    ),
    "syslog without a host": ("<34>Jan 31 11:00:00 su[7]: x y", {"host": None, "program": "su", "message": "x y"}),
    "a logger's without a year": (
        "Jan 31 11:00:00 ERROR disk: full",
        {"format": "plain", "time": at(2026, 1, 31, 11), "level": "ERROR", "message": "disk: full"},
    ),
    "syslog of 2009 with backslashes": (
        r'<11>1 - h app - - [x@1 a="b\\" c="d\"e"] msg',
        {"message": "msg", "fields": {"structured_data": r'[x@1 a="b\\" c="d\"e"]', "a": r"b\\", "c": r'd\"e'}},
    ),
    "access with its virtual host": (
        f"www.example.com:80 {COMBINED}",
        {"host": "203.0.113.9", "fields": COMBINED_FIELDS | {"virtual_host": "www.example.com:80"}},
    ),
    "access through proxies": (
        COMBINED.replace(" - alice", ", 10.0.0.1, 10.0.0.2 - alice"),
        {"host": "203.0.113.9", "fields": COMBINED_FIELDS | {"proxies": "10.0.0.1, 10.0.0.2"}},
    ),
    "access of one with a blank in the name": (
        '::1 - john doe [31/Jan/2026:11:00:00 +0000] "GET /" 200 1',
        {"host": "::1", "fields": {"user": "john doe", "method": "GET", "path": "/", "status": "200", "bytes": "1"}},
    ),
    "access that ends with backslashes": (
        COMBINED.replace("there/", r"there\\").replace("(x)", r"\\"),
        {"fields": COMBINED_FIELDS | {"referrer": r"http://there\\", "agent": 'Agent \\"7\\" \\\\'}},
    ),
    "access with quotes that nobody escaped": (
        '1.2.3.4 - - [31/Jan/2026:11:00:00 +0000] "GET /?q="x" HTTP/1.1" 200 1 "-" "a "b" c"',
        {"message": 'GET /?q="x" HTTP/1.1', "fields": {"method": "GET", "path": '/?q="x"', "protocol": "HTTP/1.1", "status": "200", "bytes": "1", "agent": 'a "b', "more": 'c"'}},
    ),
    "access whose request looks like its end": (
        r'1.2.3.4 - - [31/Jan/2026:11:00:00 +0000] "GET /\" 200 1 HTTP/1.1" 404 5',
        {"message": r'GET /\" 200 1 HTTP/1.1', "level": "WARN"},
    ),
    "the document's without a message": (
        "11:00:00\t\tP1-1\tT1",
        {"format": "reference", "message": "", "fields": {"tag": "P1-1", "log_topic": "T1"}},
    ),
    "more parameters than are looked for": (
        f"<1>1 - h a - - [{PARAMETERS}] text",
        {"fields": {"structured_data": f"[{PARAMETERS}]"} | {str(n): "" for n in range(PARAMETERS_MAX)}},
    ),
    "a separator of ours inside": ("INFO a\x01b\x02c\x03d", {"level": "INFO", "message": "a\ufffdb\ufffdc\ufffdd"}),
    "a long agent": (
        f'h - - [31/Jan/2026:11:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "{"a" * 60_000}"',
        {"format": "access", "level": "INFO"},
    ),
    "an agent of escapes": (
        'h - - [31/Jan/2026:11:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "' + r"\"" * 30_000 + '"',
        {"format": "access", "level": "INFO"},
    ),
    "long structured data": (
        f'<1>1 - h a - - [x@1 k="{"v" * 30_000}"][y@2 l="{chr(92) + "]"} z"] text',
        {"format": "syslog5424", "message": "text", "host": "h"},
    ),
    "much structured data": ("<1>1 - h a - - " + "[x]" * 20_000 + " text", {"message": "text"}),
    "a long message": ("INFO " + "x " * 30_000, {"format": "plain"}),
    "a long tag": (f"11:00:00\tINFO\t{'-1' * 30_000}\tT1", {"format": "reference"}),
    "long json": ('{"msg":"' + "x" * 60_000 + '"}', {"format": "json"}),
    "a dollar and a backslash": (r"INFO costs $1 \1 \\", {"message": r"costs $1 \1 \\"}),
    "letters of all sorts": ("ERROR наводнение 洪水 🌊", {"message": "наводнение 洪水 🌊"}),
}  # fmt: skip
REFUSED: dict[str, tuple[str | bytes | None, str]] = {
    "nothing": (None, "no value"),
    "an empty line": (b"", "line: empty"),
    "blanks": (" \r\n", "line: empty"),
    "bytes": (b"\xff\xfeINFO", "line: not UTF-8"),
    "prose": ("once upon a time", "line: in no known format: 'once upon a time'"),
    "a long line": (b"INFO " + b"x" * BYTES_MAX, f"line: more than {BYTES_MAX} bytes"),
    "json cut off": ('{"level":"info"', "json: not one object, or cut off"),
    "json that is none": ("{not json}", "json: not one object, or cut off"),
    "json twice": ('{"a":"1"}\n{"b":"2"}', "json: not one object, or cut off"),
    "json and more": ('{"a":"1"} garbage }', "json: not one object, or cut off"),
    "json before the first year": ('{"time":"0001-01-01T00:00:00+01:00"}', "time: '0001-01-01T00:00:00+01:00' is none"),
    "json after the last year": ('{"time":"9999-12-31T23:59:59-05:00"}', "time: '9999-12-31T23:59:59-05:00' is none"),
    "json with a long time": ('{"time":"' + "x" * 60_000 + '"}', f"time: '{'x' * 60}' is none"),
    "json with a wrong time": ('{"time":"soon"}', "time: 'soon' is none"),
    "a clock that is wrong": ("25:61:00\tINFO\tP-1\tT1", "time: '25:61:00' is none"),
    "a day that is none": ("2026-02-30 10:00:00 INFO x", "time: '2026-02-30 10:00:00' is none"),
    "a month that is none": (COMBINED.replace("Jan", "Foo"), "time: '31/Foo/2026:11:59:58 +0100' is none"),
    "a time, and no more to go by": ("2026-01-31T11:22:33Z something happened", "line: in no known format: '2026-01-31T11:22:33Z something happened'"),
    "the document's without a tag": ("11:00:00\tP1-1\tT1", "line: in no known format: '11:00:00\tP1-1\tT1'"),
    "a priority beyond": ("<192>1 - - - - - - x", "syslog: priority 192 is beyond 191"),
}  # fmt: skip
NAMES = [*UNDERSTOOD, *REFUSED]


@pytest.fixture(scope="module")
def parsed(spark: SparkSession) -> dict[str, Row]:
    """All of them in one query: what takes time is Spark's start, not lines."""
    values = [UNDERSTOOD[name][0] if name in UNDERSTOOD else REFUSED[name][0] for name in NAMES]
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = lines_of(frame(spark, [message(value, number) for number, value in enumerate(values)])).collect()
    assert len(rows) == len(NAMES)
    return {NAMES[row.offset]: row for row in rows}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_a_line_becomes_columns(parsed: dict[str, Row], name: str) -> None:
    wanted = UNDERSTOOD[name][1]
    found = parsed[name].asDict()
    found["time"] = found["time"] and found["time"].astimezone(UTC)
    assert {column: found[column] for column in ("error", *wanted)} == {"error": None} | wanted


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_parsed_says_why_and_nothing_else(parsed: dict[str, Row], name: str) -> None:
    found = parsed[name]
    assert found.error == REFUSED[name][1]
    typed = ("time", "format", "level", "host", "program", "message", "fields")
    assert all(found[column] is None for column in typed)
    assert (found.topic, found.partition, found.offset) == ("logs", 0, NAMES.index(name))


def filled(begin: str, again: str, end: str, length: int) -> str:
    return begin + again * ((length - len(begin) - len(end)) // len(again)) + end


# What took minutes once, and much longer the longer it was. Short enough to be seen to fail.
HOSTILE = [
    *(filled("h - - [31/Jan/2026:11:00:00 +0000] ", '"a" 200 1 "" "', end, 2000) for end in ("\nx", "")),
    *(filled("11:00:00", again, "x", 12_000) for again in ("\t", "\t\tx")),
    *(filled("<1>1 - h a - - [", again, "] text", 12_000) for again in ("x", "x=", 'x="', 'x="\\"')),
    "<1>1 - h a - - [" + " ".join(f'{n}="v"' for n in range(3000)) + "] text",
    filled("Jan 31 11:00:00 h ", "x[", "", 12_000),
    filled("a:1", ", a:1", " - - [x", 12_000),
    filled('{"a":1', "} ", "x", 12_000),
]


def test_no_line_holds_up_the_others(spark: SparkSession, parsed: dict[str, Row]) -> None:
    rows = [message(line, number) for number, line in enumerate(HOSTILE)]
    began = time.monotonic()
    assert len(lines_of(frame(spark, rows)).collect()) == len(HOSTILE)
    assert time.monotonic() - began < 20  # it takes a second or two, most of it Spark's own


def test_times_do_not_depend_on_the_sessions_zone(spark: SparkSession, parsed: dict[str, Row]) -> None:
    names = ["the document's own", "python's logging", "syslog of 2001", "access, combined"]
    rows = [message(UNDERSTOOD[name][0], number) for number, name in enumerate(names)]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found = {names[row.offset]: row for row in lines_of(frame(spark, rows)).collect()}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert {name: row.time for name, row in found.items()} == {name: parsed[name].time for name in names}
    assert {row.date for row in found.values()} == {PRODUCED.date()}
