"""Writes docs/settings.md: every setting of every process, from the table in talweg.config.

Run it by `make reference`. A test compares the page with the table.
"""

from pathlib import Path

from talweg.config import BrokerSettings, ManagerSettings, ProcessSettings, default_of, settings_of

INTRODUCTION = """\
# Settings

Written by `make reference` from the tables in `talweg.config`. Where a setting is given in several places,
the first of these counts:

1. the flag;
2. the `TALWEG_` variable (an empty one counts as not given);
3. the variable of the reference documents, in brackets below;
4. the file, in its table for the process, `[broker]` or `[manager]`;
5. the file, at its top, which is for all processes;
6. the default.

The file is TOML. `--config` or TALWEG_CONFIG names it. In it a setting has the variable's name in small
letters, without `TALWEG_`:

```toml
heartbeat = "500ms"

[broker]
port = 9001
data = "broker-1"
```

Times have a unit (`500ms`, `10s`, `5m`, `12h`, `7d`); sizes may have one (`65536`, `64 KiB`, `10 MB`). A
setting that is wrong, or that nobody knows, stops the start with its name and what was expected. TALWEG_URL
is no setting of a server: it tells clients where the cluster is.
"""


def escaped(text: str) -> str:
    """As it may stand in a table."""
    return text.replace("|", "\\|")


def rows(process: type[ProcessSettings]) -> list[str]:
    """A table of a process's settings."""
    lines = ["| flag | variable | default | what it is for | expected |\n", "|---|---|---|---|---|\n"]
    for field, setting in settings_of(process).items():
        flag = f"`{setting.flag}`" + (f", `{setting.short}`" if setting.short else "")
        variable = setting.variable + (f" ({setting.also})" if setting.also else "")
        words = [default_of(process, field), setting.purpose, setting.kind.expected]
        lines.append("| " + " | ".join([flag, variable, *map(escaped, words)]) + " |\n")
    return lines


def render() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        "\n## Brokers\n\n",
        *rows(BrokerSettings),
        "\n## Managers\n\n",
        *rows(ManagerSettings),
    ]
    return "".join(parts)


def main() -> None:
    """Write the page."""
    (Path(__file__).resolve().parent.parent / "docs" / "settings.md").write_text(render())


if __name__ == "__main__":
    main()
