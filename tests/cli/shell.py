"""The `talweg` command without a process of its own, for tests: what it prints, and its exit code."""

import json
from typing import Any, NamedTuple

from typer.testing import CliRunner

from talweg.cli.main import app


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document that was printed."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        """A JSON object a line."""
        return [json.loads(line) for line in self.lines]


class Shell:
    def __init__(self, url: str) -> None:
        self.url = url
        self._runner = CliRunner()

    def __call__(self, *arguments: object, code: int = 0, stdin: bytes | str | None = None) -> Ended:
        """Run it. It has to end with that code; without success, with one line on standard error."""
        words = [str(argument) for argument in arguments]
        result = self._runner.invoke(app, words, input=stdin, env={"TALWEG_URL": self.url, "COLUMNS": "200"})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        ended = Ended(result.exit_code, result.stdout, result.stderr)
        assert ended.code == code, ended
        return ended

    def refuses(self, *arguments: object, code: int, stdin: bytes | str | None = None) -> str:
        """What it says, in one line, when it does not do it."""
        ended = self(*arguments, code=code, stdin=stdin)
        assert ended.err.startswith("talweg: "), ended
        assert ended.err.count("\n") == 1, ended
        return ended.err
