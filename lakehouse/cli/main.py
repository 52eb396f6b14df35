"""The command line `lakehouse`: the root, the broker, and whatever commands the installed packages bring.

A package announces its commands as an entry point of the group `lakehouse.commands`: a typer app
whose commands join the root. So this package need not know the packages that depend on it.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from lakehouse import __version__
from lakehouse.cli import commands, console, doctor, opening, produce, project, validate
from lakehouse.cli.console import AsJson, Commands, Pipelines, Port
from lakehouse.errors import SettingsError
from lakehouse.settings import Settings, from_environment, use_examples


def main() -> None:
    console.run(app())


def app() -> typer.Typer:
    """Returns the root app with every command that is installed."""
    root = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # typer's panels import markdown, pygments and attrs: half of the CPU of `--help`
        help="Declare tables once, fill them by streams and batch runs, and reconcile the two.",
    )
    root.callback()(_options)
    for command in (
        project.init,
        validate.validate,
        plan,
        doctor.doctor,
        commands.query,
        serve,
        produce.produce,
    ):
        root.command()(command)
    groups = {
        "table": _group("Tables: what they hold, what was quarantined or late.", _TABLE),
        "broker": _group("The embedded Kafka broker.", _BROKER),
        "topic": _group("Topics that ingest tables read.", {"create": create_topic}),
        "stream": _group(
            "Streaming jobs: start, stop, watch and supervise them.", {"state": commands.state}
        ),
    }
    for entry in sorted(entry_points(group="lakehouse.commands"), key=lambda e: e.name):
        try:
            _add_commands(entry, root, groups)
        except (ImportError, AttributeError) as err:
            # a broken package must not disable the others
            console.print_note(
                f"commands={entry.value}: they cannot be loaded and are missing ({err})"
            )
    for name, group in groups.items():
        root.add_typer(group, name=name)
    return root


def _group(text: str, commands: Mapping[str, Callable]) -> typer.Typer:
    group = console.group(text)
    for name, command in commands.items():
        group.command(name)(command)
    return group


def _add_commands(entry: EntryPoint, root: typer.Typer, groups: dict[str, typer.Typer]) -> None:
    """Adds a package's commands to the root, and those of its groups to the groups of the same names."""
    app = entry.load()
    root.registered_commands += app.registered_commands
    for below in app.registered_groups:
        inner = below.typer_instance
        group = groups.setdefault(below.name, console.group(inner.info.help))
        group.registered_commands += inner.registered_commands


def _print_version(asked: bool) -> None:
    if asked:
        console.print_text(f"lakehouse {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
]


def _options(
    version: Version = False,
    examples: Annotated[
        bool, typer.Option("--examples", help="Work on the tables that ship: sensors and ads")
    ] = False,
) -> None:
    """The options of `lakehouse` itself."""
    if examples:
        use_examples()


def plan(pipelines: Pipelines = None, as_json: AsJson = False) -> None:
    """Show what a start of the tables as they are declared now would change. Changes nothing.

    Exit code 0 if a start is accepted, 1 if a table needs its command first.
    """
    from lakehouse.cli import change_plan
    from lakehouse.storage.position import declared_state

    lakehouse = opening.lakehouse()
    tables = opening.tables(lakehouse, pipelines)
    planned = change_plan.planned(lakehouse, tables, undeclared=not pipelines)
    if as_json:
        console.print_json(planned)
    else:
        change_plan.show(planned)
    for remark in declared_state.remarks(lakehouse, tables):
        console.print_note(f"warning: {remark}")
    if any(change.action in change_plan.ASKING for change in planned):
        raise typer.Exit(1)


def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen on; there is no authentication")
    ] = "127.0.0.1",
    port: Port = 8181,
) -> None:
    """Serve the rows of keyed and versioned tables by key over HTTP, until it is interrupted. Needs no JVM."""
    from lakehouse.cli import serve as server

    server.run(opening.lakehouse(), host, port)


def start_broker() -> None:
    """Start the broker unless it runs, and wait until it answers.

    The broker keeps running when this command has ended.
    """
    from lakehouse.runtime import jars, kafka_broker

    settings = from_environment()
    if external := _external(settings):
        raise SettingsError(
            f"bootstrap_servers={external}: the settings name a cluster of yours; unset that to use the embedded one"
        )
    with console.working("starting the broker"):
        running = kafka_broker.start(settings, jars.resolve(settings.jars, console.print_note))
    console.print_text(
        f"running at {running.bootstrap_servers} (pid {running.pid}); its log is {running.log}"
    )


def stop_broker() -> None:
    """Stop the broker; its data stay."""
    from lakehouse.runtime import kafka_broker

    with console.working("stopping the broker"):
        stopped = kafka_broker.stop(from_environment())
    console.print_text("stopped" if stopped else "none was running")


def broker_status(as_json: AsJson = False) -> None:
    """Show which broker this lakehouse uses.

    Exit code 1 if it is the embedded broker and does not run.
    """
    from lakehouse.runtime import kafka_address

    settings = from_environment()
    external = _external(settings)
    embedded = None if external else kafka_address.running(settings)
    facts = {
        "broker": "external" if external else "embedded",
        "bootstrap_servers": external or (embedded.bootstrap_servers if embedded else None),
        "pid": embedded.pid if embedded else None,
        "log": embedded.log if embedded else None,
    }
    console.print_facts(facts, as_json)
    if not (external or embedded):
        raise typer.Exit(1)


def create_topic(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The topic, as `kafka(...)` names it")
    ],
    partitions: Annotated[int, typer.Option(min=1, help="The number of its partitions")] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option(help="A property of the topic, such as retention.ms=-1; repeatable"),
    ] = None,
) -> None:
    """Create a topic on the broker of this lakehouse, yours or the embedded one.

    A topic that exists stays as it is.
    """
    from lakehouse.runtime import kafka_broker

    pairs = [given.partition("=") for given in config or []]
    if unusable := next((key for key, equals, _ in pairs if not equals), None):
        raise SettingsError(
            f"config={unusable!r}: a property and its value; write {unusable}=value"
        )
    with console.working(f"creating {name}"):
        created = kafka_broker.ensure_topics(
            from_environment(), {name: partitions}, {key: value for key, _, value in pairs}
        )
    console.print_text(
        f"{name}: {f'created, partitions: {partitions}' if created else 'there already; it stays as it is'}"
    )


def _external(settings: Settings) -> str:
    return settings.bootstrap_servers or settings.kafka.get("bootstrap.servers", "")


_BROKER: dict[str, Callable] = {"start": start_broker, "stop": stop_broker, "status": broker_status}
_TABLE: dict[str, Callable] = {
    "list": commands.tables,
    "show": commands.show,
    "get": commands.get,
    "quarantine": commands.quarantine,
    "late": commands.late,
    "lateness": commands.lateness,
    "accept": commands.accept,
}
