"""Dispatch of `manage.py` commands. Uses only the standard library until the virtual environment is active."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import invalidate_caches
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir
from typing import NoReturn

from launcher import address, bootstrap, commands, deployment, sandboxes, state
from launcher.errors import LaunchError, RefusedStart
from launcher.installation import errors as installation_errors
from launcher.local_models.model_file import ModelFile
from launcher.report import Report

# Placeholders for settings that are required, but unused by `api_coverage`, which writes a document, and by help.
UNUSED = {"SECRET_KEY": "-", "API_KEY_PEPPER": "-", "DATABASE_URL": "postgresql://-:-@localhost/-", "REDIS_URL": "-"}
HELP = ("-h", "--help")


def main(*, root: Path, argv: Sequence[str]) -> int:
    """Run the command and return the exit code."""
    try:
        match list(argv[1:]):
            case [] | ["-h" | "--help" | "help"]:
                print(commands.overview())
                return 0
            case ["--version" | "version"]:
                print(commands.version(root))
                return 0
            case ["help", command] if not command.startswith("-"):
                return _help(root=root, command=command)
            case [command, *arguments] if _asks_for_help(arguments):
                return _help(root=root, command=command)
            case ["up", *arguments]:
                return _up(root=root, argv=argv, arguments=arguments)
            case ["test", *arguments]:
                _test(root=root, argv=argv, arguments=arguments)
            case ["install", *arguments]:
                return _install(root=root, arguments=arguments)
            case ["sandbox", *arguments]:
                commands.PARSERS["sandbox"]().parse_args(arguments)
                return sandboxes.serve()
            case ["generate_secrets" | "prepare_database" | "healthcheck" as command, *arguments]:
                return _deployment(command, root=root, argv=argv, arguments=arguments)
            case ["dump_schema", *_]:
                return _dump_schema(root=root, argv=argv)
            case _:
                return _django(root=root, argv=argv)
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as failed:
        # Possible at any time while `up` runs, because it writes logs and its state.
        if failed.errno not in installation_errors.FULL:
            raise
        # Write errors do not name the file, but only these places are written to.
        places = [state.locate(root=root, environment=os.environ).directory, root, Path(gettempdir())]
        path = min(places, key=installation_errors.free_megabytes)
        message = installation_errors.explain_os_error(failed, path=path, needs="the platform needs 100 MB to start")
        print(f"error: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Ctrl-C outside of the installation and the supervisor, which handle it. Shells report it as 128 + SIGINT.
        return 130


def _asks_for_help(arguments: Sequence[str]) -> bool:
    # `dbshell -- -h HOST` passes arguments to another program.
    return any(argument in HELP for argument in takewhile(lambda argument: argument != "--", arguments))


def _help(*, root: Path, command: str) -> int:
    if command in commands.PARSERS:
        print(commands.PARSERS[command]().format_help())
    elif command == "test":
        print(commands.test_help())
    elif bootstrap.is_usable(root=root):
        return _django(root=root, argv=[sys.argv[0], command, "--help"])
    else:
        print(commands.summary(command))
    return 0


def _up(*, root: Path, argv: Sequence[str], arguments: list[str]) -> int:
    # Parsed first, so that a wrong option is reported before the installation, which may take half a minute.
    options = commands.up_parser().parse_args(arguments)
    if options.model_file:
        # A file that cannot be a model is reported early for the same reason.
        ModelFile.at(options.model_file)
    if not bootstrap.is_prepared(environment=bootstrap.Environment(root=root), requirements=bootstrap.RUNTIME):
        # So is a port that cannot be used.
        address.choose(host=options.host, port=options.port, environment=os.environ)
    bootstrap.enter(root=root, requirements=bootstrap.RUNTIME, argv=argv, report=Report(plain=options.no_input))
    if options.model:
        added = bootstrap.SHIPPED_MODELS[options.model]
        bootstrap.install(root=root, requirements=added, report=Report(plain=options.no_input))
        # Module finders cache the contents of directories.
        invalidate_caches()
    from launcher import up

    return up.run(root=root, options=up.Options.of(options), environment=os.environ)


def _install(*, root: Path, arguments: list[str]) -> int:
    options = commands.install_parser().parse_args(arguments)
    report = Report(plain=options.no_input)
    files = [bootstrap.DEVELOPMENT if options.dev else bootstrap.RUNTIME]
    files += [bootstrap.TELEMETRY] if options.telemetry else []
    files += [bootstrap.LLAMA] if options.llama else []
    for requirements in files:
        bootstrap.install(root=root, requirements=requirements, report=report)
    if options.compile:
        bootstrap.compile_sources(root=root, report=report)
    report.step(f"The packages of {' and '.join(files)} are installed in {root / '.venv'}")
    return 0


def _test(*, root: Path, argv: Sequence[str], arguments: list[str]) -> NoReturn:
    bootstrap.enter(root=root, requirements=bootstrap.DEVELOPMENT, argv=argv, report=Report())
    os.chdir(root)
    # Starting the servers and the workers takes a few seconds in which pytest prints nothing.
    print("Starting the tests", flush=True)
    if "--changed" in arguments:
        rest = [argument for argument in arguments if argument != "--changed"]
        os.execv(sys.executable, [sys.executable, "-m", "tests.changed", *rest])  # noqa: S606
    paths = [path for argument in arguments if (path := Path(argument.partition("::")[0])).exists()]
    # If a file is named, its slow tests run, too. If there are several `-m`, pytest uses the last one.
    options = [] if any(path.is_file() for path in paths) else ["-m", "not slow"]
    # For a few tests, starting several processes takes longer than it saves.
    if not paths and "-k" not in arguments:
        # One more than there are cores, because tests wait for servers now and then.
        options += ["-n", str(min(4, 1 + (os.cpu_count() or 1)))]
        # Files with slow tests start servers of their own, once for each process that executes tests of the file.
        options += ["--dist", "loadfile", "--no-loadscope-reorder"] if "slow" in arguments else ["--dist", "worksteal"]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *options, *arguments])  # noqa: S606


def _django(*, root: Path, argv: Sequence[str]) -> int:
    bootstrap.enter_existing(root=root, argv=argv)
    needs_no_services = argv[1:2] in (["api_coverage"], ["help"]) or _asks_for_help(argv[2:])
    variables = UNUSED if needs_no_services else _running_environment(root)
    for name, value in variables.items():
        if name != "DATABASE_ADMIN_URL" or argv[1:2] == ["restore"]:
            os.environ.setdefault(name, value)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "server.settings")
    # Imported objects live until the end; searching them for garbage would take a sixth of the start. Servers turn the
    # collector on again when they have started (`server.web.http_server.freeze_startup_objects`).
    gc.disable()
    import django
    from django.core.exceptions import ImproperlyConfigured

    from launcher.django_commands import CommandLine

    try:
        django.setup()
        if argv[1:2] not in (["web"], ["worker"]):
            gc.enable()
        CommandLine(list(argv)).execute()
    except ImproperlyConfigured as wrong:
        raise RefusedStart.of(wrong) from wrong
    return 0


def _deployment(command: str, *, root: Path, argv: Sequence[str], arguments: list[str]) -> int:
    options = commands.PARSERS[command]().parse_args(arguments)
    if command == "generate_secrets":
        deployment.print_secrets()
        return 0
    bootstrap.enter_existing(root=root, argv=argv)
    if command == "prepare_database":
        return deployment.prepare_database(environment=os.environ)
    return deployment.check_health(options.process, environment=os.environ)


def _dump_schema(*, root: Path, argv: Sequence[str]) -> int:
    bootstrap.enter_existing(root=root, argv=argv)
    from launcher.testing import start_servers

    # The snapshot shows an empty database of the embedded PostgreSQL, regardless of configured or running servers.
    servers = start_servers(root / ".test-run", environment={})
    try:
        path = os.pathsep.join((str(servers.programs), os.environ.get("PATH", os.defpath)))
        os.environ.update(
            {**UNUSED, "PATH": path, "DATABASE_URL": servers.app_url, "DATABASE_OWNER_URL": servers.owner_url}
        )
        return _django(root=root, argv=argv)
    finally:
        servers.stop()


def _running_environment(root: Path) -> dict[str, str]:
    here = state.locate(root=root, environment=os.environ)
    if not os.environ.get("DATABASE_URL"):
        return state.read_environment(state=here)
    try:
        running = state.read_environment(state=here)
    except LaunchError:
        # The instance belongs to another user, which does not matter: this command uses its own database.
        return {}
    # Other roles of the instance's database must not be used for the database that the caller named.
    running.pop("DATABASE_OWNER_URL", None)
    running.pop("DATABASE_ADMIN_URL", None)
    return running
