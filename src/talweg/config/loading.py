"""From flags, variables and a file to the settings of a process, or a word on what is wrong with which."""

import contextlib
import difflib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from talweg.config.settings import (
    PREFIX,
    BrokerSettings,
    ManagerSettings,
    ProcessSettings,
    Setting,
    settings_of,
)
from talweg.errors import InvalidSetting, StorageError

S = TypeVar("S", bound=ProcessSettings)

_PROCESSES: Final = (BrokerSettings, ManagerSettings)
_FILE_FLAG: Final = "--config"
_FILE_VARIABLE: Final = "TALWEG_CONFIG"
_OTHER_VARIABLES: Final = frozenset({_FILE_VARIABLE, "TALWEG_URL"})  # the latter tells clients where to go
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on


class _Given(NamedTuple):
    """A value, and how its setting is spelt where it was found."""

    value: Any
    spelling: str


def load_settings(process: type[S], flags: Mapping[str, Any], environment: Mapping[str, str]) -> S:
    """The settings of a process; raises InvalidSetting with the name of the one that is wrong.

    `flags` holds those that were given, by their long names (`--port`). Variables that are empty count as
    not given.
    """
    table = settings_of(process)
    known_flags = [setting.flag for setting in table.values()]
    for flag in flags:
        if flag not in known_flags and flag != _FILE_FLAG:
            raise _unknown(flag, known_flags)
    _check_variables(environment)
    path = flags.get(_FILE_FLAG) or environment.get(_FILE_VARIABLE)
    sections = _read_file(str(path), process) if path else ()
    values, spellings = {}, {}
    for field, setting in table.items():
        given = next(_find(setting, flags, environment, sections), None)
        spellings[field] = given.spelling if given is not None else setting.variable
        if given is not None:
            values[field] = _read(setting, given)
    settings = process(**values)
    _check_together(settings, spellings)
    return settings


@contextlib.contextmanager
def blaming(setting: str) -> Iterator[None]:
    """What is raised in here because a setting cannot work, or not with what is there, names the setting."""
    try:
        yield
    except (InvalidSetting, StorageError) as error:
        raise type(error)(f"{setting}: {error}") from error


def describe(process: type[ProcessSettings]) -> str:
    """All settings of a process for people to read: names, default, purpose, what is expected."""
    blocks = []
    for field, setting in settings_of(process).items():
        flag = f"{setting.short}, {setting.flag}" if setting.short else setting.flag
        variables = f"{setting.variable} or {setting.also}" if setting.also else setting.variable
        lines = [f"{flag}  ({variables})", setting.purpose]
        lines += [f"Expected: {setting.kind.expected}.", f"Default: {default_of(process, field)}."]
        blocks.append("\n    ".join(lines))
    return "\n".join(blocks)


def default_of(process: type[ProcessSettings], field: str) -> str:
    """What a setting is when nobody says, as one would write it."""
    setting = settings_of(process)[field]
    return setting.default or setting.kind.show(getattr(process(), field))


def _find(
    setting: Setting,
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
    sections: tuple[tuple[Mapping[str, Any], str], ...],
) -> Iterator[_Given]:
    """Where a setting is given, the place that counts first."""
    if setting.flag in flags:
        yield _Given(flags[setting.flag], setting.flag)
    for variable in (setting.variable, setting.also):
        if environment.get(variable):
            yield _Given(environment[variable], variable)
    for section, place in sections:
        if setting.key in section:
            yield _Given(section[setting.key], f"{setting.key} in {place}")


def _read(setting: Setting, given: _Given) -> Any:
    try:
        return setting.kind.read(given.value)
    except ValueError:
        shown = "what it is" if setting.kind.secret else repr(given.value)[:200]
        raise InvalidSetting(f"{given.spelling}: expected {setting.kind.expected}, not {shown}") from None


def _check_variables(environment: Mapping[str, str]) -> None:
    """A variable that no process knows is a slip of the pen; one of another process is not."""
    known = _OTHER_VARIABLES.union(*(_variables(process) for process in _PROCESSES))
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in known:
            raise _unknown(variable, known)


def _variables(process: type[ProcessSettings]) -> set[str]:
    return {setting.variable for setting in settings_of(process).values()}


def _read_file(path: str, process: type[ProcessSettings]) -> tuple[tuple[Mapping[str, Any], str], ...]:
    """The parts of a file that concern a process, the one that counts first before the other."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(f"{_FILE_FLAG}: {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{_FILE_FLAG}: {path} is not TOML: {error}") from None
    keys = {other.section: {setting.key for setting in settings_of(other).values()} for other in _PROCESSES}
    tables = {section: content.pop(section, {}) for section in keys}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidSetting(f"{section} in {path}: expected a table, [{section}]")
        _check_keys(table, keys[section], f"[{section}] of {path}")
    _check_keys(content, set.union(*keys.values()), path)
    return (tables[process.section], f"[{process.section}] of {path}"), (content, path)


def _check_keys(table: Mapping[str, Any], known: set[str], place: str) -> None:
    for key in table:
        if key not in known:
            raise _unknown(key, known, f" in {place}")


def _unknown(name: str, known: Any, place: str = "") -> InvalidSetting:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"; is {close[0]} meant?" if close else ""
    return InvalidSetting(f"{name}{place}: there is no such setting{hint}")


def _check_together(settings: ProcessSettings, spellings: Mapping[str, str]) -> None:
    """What no setting can be judged by alone."""
    if settings.host in _EVERY_ADDRESS and settings.address is None:
        raise InvalidSetting(
            f"{spellings['address']}: expected the URL at which others reach this process, because it "
            f"listens on every address of the host"
        )
    if settings.body_bytes_max > settings.bodies_bytes_max:
        raise InvalidSetting(
            f"{spellings['body_bytes_max']}: expected no more than {spellings['bodies_bytes_max']}"
        )
    if isinstance(settings, BrokerSettings):
        if settings.leader_ticks * 3 > settings.election_ticks:
            name = spellings["leader_ticks"]
            raise InvalidSetting(f"{name}: expected at most a third of {spellings['election_ticks']}")
        if settings.port == 0 and settings.data is None:
            # The default has the port in its name, and each new one would be another broker.
            raise InvalidSetting(
                f"{spellings['data']}: expected a directory, because the port is any free one"
            )
    if isinstance(settings, ManagerSettings) and settings.message_bytes_max > settings.body_bytes_max:
        name = spellings["message_bytes_max"]
        raise InvalidSetting(f"{name}: expected no more than {spellings['body_bytes_max']}")
