"""The settings of a process as flags of a subcommand: made from the table in talweg.config, not written out.

Flags arrive as the texts that they are; what they may be is checked in one place, together with variables
and the file. A flag that was not given is not passed on, so that these count.
"""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from talweg.config import ProcessSettings, Setting, default_of, settings_of
from talweg.errors import InvalidSetting

FILE_FLAG: Final = "--config"
_FILE_FIELD: Final = "config_file"
_ATTACHED_FIELD: Final = "attached"
_CONTEXT_FIELD: Final = "context"

Flags = dict[str, Any]  # by their long names, as load_settings takes them


def with_flags(
    process: type[ProcessSettings],
    *,
    of_group: bool = False,  # of a group of subcommands: called when none of them is
) -> Callable[[Callable[[Flags, bool], None]], Callable[..., None]]:
    """Gives a subcommand a flag for each setting. It is called with those given, and `attached`."""
    table = settings_of(process)

    def decorate(run: Callable[[Flags, bool], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            context: typer.Context | None = given.pop(_CONTEXT_FIELD, None)
            attached = given.pop(_ATTACHED_FIELD)
            file = given.pop(_FILE_FIELD)
            flags = {table[field].flag: value for field, value in given.items() if value is not None}
            if context is not None and context.invoked_subcommand is not None:
                _refuse_flags(context, flags, process.section)
                return
            run(flags if file is None else {**flags, FILE_FLAG: file}, attached)

        parameters = [_parameter(process, field, setting) for field, setting in table.items()]
        parameters += [_file_parameter(), _attached_parameter()]
        if of_group:
            parameters.append(_keyword(_CONTEXT_FIELD, typer.Context, inspect.Parameter.empty))
        command.__name__ = run.__name__
        command.__doc__ = run.__doc__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _refuse_flags(context: typer.Context, flags: Flags, section: str) -> None:
    """A setting means nothing to a subcommand that starts no server."""
    for flag in flags:
        told = f"{flag} is for starting a {section}, not for {section} {context.invoked_subcommand}"
        raise InvalidSetting(f"{told}: options of that stand behind it")


def _parameter(process: type[ProcessSettings], field: str, setting: Setting) -> inspect.Parameter:
    variables = f"{setting.variable} or {setting.also}" if setting.also else setting.variable
    default = default_of(process, field)
    text = f"{setting.purpose} Expected: {setting.kind.expected}. Default: {default}. Variable: {variables}."
    names = [setting.flag]
    kind: Any = str | None
    metavar: str | None = "VALUE"
    if isinstance(getattr(process(), field), bool):
        names, kind, metavar = [f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"], bool | None, None
    if setting.short:
        names.append(setting.short)
    option = typer.Option(*names, help=escape(text), show_default=False, metavar=metavar)
    return _keyword(field, Annotated[kind, option], None)


def _file_parameter() -> inspect.Parameter:
    text = "TOML file with settings. Variable: TALWEG_CONFIG."
    option = typer.Option(FILE_FLAG, help=text, show_default=False, metavar="FILE")
    return _keyword(_FILE_FIELD, Annotated[str | None, option], None)


def _attached_parameter() -> inspect.Parameter:
    option = typer.Option("--attached", help="Stop when standard input ends.", hidden=True)
    return _keyword(_ATTACHED_FIELD, Annotated[bool, option], False)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
