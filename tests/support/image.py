"""Execution of the Dockerfile without a container engine, in a directory with an empty Debian.

Differences from Docker: the base comes from Debian's packages instead of the official image, which is made of the same
ones; processes share the network, the process ids and the devices of the machine.
"""

import io
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dockerfile_parse import DockerfileParser

from tests.support.programs import need

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The mounts of Docker, seen from the machine: only the paths named here are writable.
_NAMESPACE = """
set -e
mount --rbind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
for file in /etc/resolv.conf /etc/hosts; do mount --bind "$file" "$ROOT$file"; done
mount --bind "$CERTIFICATES" "$ROOT/usr/local/share/ca-certificates"
for pair in $VOLUMES; do mount --bind "${pair%%:*}" "$ROOT${pair#*:}"; done
[ -z "$READ_ONLY" ] || mount -o remount,bind,ro "$ROOT"
# Not chroot, in which Linux allows no user namespaces. Both roots are then mounted at the same place, the old
# one on top.
cd "$ROOT"
pivot_root . .
umount -l .
cd "$DIRECTORY"
exec env --ignore-environment "$@"
"""
# All stages together have half of that.
_IMAGE_BYTES = 3 * 1024**3
# In addition to the environment of the image: this machine's access to package indexes.
_BUILD_VARIABLES = ("PIP_", "UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


class BuildContext:
    """The files that a build may copy: those that .dockerignore does not exclude."""

    def __init__(self) -> None:
        lines = [line.strip() for line in (ROOT / ".dockerignore").read_text().splitlines()]
        self._rules = [
            (line.startswith("!"), _translate(line.lstrip("!"))) for line in lines if line and line[0] != "#"
        ]
        self._parents = {line[1:].partition("/")[0] for line in lines if line.startswith("!")}

    def includes(self, path: str) -> bool:
        """Return whether a file is part of the context."""
        parts = path.split("/")
        included = True
        for is_exception, pattern in self._rules:
            if any(pattern.fullmatch("/".join(parts[:end])) for end in range(1, len(parts) + 1)):
                included = is_exception
        return included

    def files(self, directory: Path) -> Iterator[str]:
        """Yield the paths of all files, relative to the directory."""
        for parent, folders, names in os.walk(directory):
            if parent == str(directory):
                folders[:] = [name for name in folders if name in self._parents]
            for name in names:
                path = os.path.relpath(f"{parent}/{name}", directory)
                if self.includes(path):
                    yield path


def _translate(pattern: str) -> re.Pattern[str]:
    parts = [re.escape(part).replace(r"\*", "[^/]*") for part in pattern.split("**/")]
    return re.compile("(?:.*/)?".join(parts))


CONTEXT = BuildContext()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage of the Dockerfile; `parent` is the name of another stage, or a reference of an image."""

    name: str
    parent: str
    steps: list[tuple[str, str]] = field(default_factory=list)


def instructions() -> list[Stage]:
    """Return the stages of the Dockerfile with their instructions."""
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for step in DockerfileParser(fileobj=io.BytesIO(DOCKERFILE.read_bytes())).structure:
        name, value = str(step["instruction"]), str(step["value"])
        if name == "FROM":
            parent, _, alias = value.partition(" AS ")
            parent = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], parent)
            stages.append(Stage(name=alias or "final", parent=parent))
        elif name == "ARG" and not stages:
            name, _, value = value.partition("=")
            arguments[name] = value
        elif name != "COMMENT":
            stages[-1].steps.append((name, value))
    return stages


@dataclass(kw_only=True)
class Image:
    """A root file system with the settings of its processes."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    directory: str = "/"
    user: str = "0:0"
    settings: dict[str, str] = field(default_factory=dict)

    def start(
        self,
        command: Sequence[str],
        *,
        variables: Mapping[str, str],
        volumes: Mapping[Path, str],
        network: bool = True,
        **options: Any,
    ) -> "subprocess.Popen[bytes]":
        """Start a process as the user of the image, with a read-only root and without any privilege."""
        user, group = self.user.split(":")
        privileges = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--clear-groups"]
        argv = ["setpriv", f"--reuid={user}", f"--regid={group}", *privileges, *command]
        environment = {**self.environment, "HOME": "/nonexistent", **variables}
        return subprocess.Popen(
            self._enter(argv, environment, read_only=True, network=network),
            env=self._outside(volumes, read_only=True),
            stdin=subprocess.DEVNULL,
            **options,
        )

    def run(self, script: str) -> None:
        """Run the script of a RUN instruction. Raises AssertionError with its output if it fails."""
        passed = {name: value for name, value in os.environ.items() if name.startswith(_BUILD_VARIABLES)}
        certificates = "/usr/local/share/ca-certificates/machine.pem"
        environment = {**self.environment, "HOME": "/root", **passed, "SSL_CERT_FILE": certificates}
        done = subprocess.run(
            self._enter(["/bin/sh", "-c", script], environment, read_only=False, network=True),
            env=self._outside({}, read_only=False),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"RUN {script}\n{done.stdout}\n{done.stderr}"

    def _enter(
        self, argv: Sequence[str], environment: Mapping[str, str], *, read_only: bool, network: bool
    ) -> list[str]:
        variables = [f"{name}={value}" for name, value in environment.items()]
        # Each of these programs replaces itself, so that the process keeps the id that the caller knows.
        spaces = ["unshare", "--mount", "--propagation", "private", *([] if network else ["--net"])]
        return [*spaces, "/bin/sh", "-c", _NAMESPACE, "sh", *variables, *argv]

    def _outside(self, volumes: Mapping[Path, str], *, read_only: bool) -> dict[str, str]:
        return {
            "PATH": _PATH,
            "ROOT": str(self.root),
            "DIRECTORY": self.directory,
            "CERTIFICATES": str(self.root.parent / "certificates"),
            "VOLUMES": " ".join(f"{source}:{target}" for source, target in volumes.items()),
            "READ_ONLY": "1" if read_only else "",
        }


def build(directory: Path) -> Image:
    """Execute the Dockerfile in a directory, which must belong to root, and return the image of its last stage."""
    bootstrap = need("mmdebstrap", package="mmdebstrap")
    certificates = directory / "certificates"
    certificates.mkdir()
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", certificates / "machine.pem")
    images: dict[str, Image] = {}
    for stage in instructions():
        root = directory / stage.name
        if stage.parent in images:
            parent = images[stage.parent]
            subprocess.run(["cp", "-a", "--reflink=auto", parent.root, root], check=True)
            image = Image(
                root=root,
                environment=dict(parent.environment),
                directory=parent.directory,
                user=parent.user,
            )
        else:
            found = re.fullmatch(r"docker\.io/library/debian:(\w+)-slim", stage.parent)
            assert found, stage.parent
            options = [
                "--quiet",
                "--dpkgopt=force-unsafe-io",
                "--variant=minbase",
                "--format=directory",
                "--aptopt=Acquire::Languages none",
            ]
            documents = ["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*"]
            command = [bootstrap, *options, *documents, found[1], str(root), "http://deb.debian.org/debian"]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            assert made.returncode == 0, made.stderr
            for name in ("resolv.conf", "hosts"):
                (root / "etc" / name).touch()
            (root / "usr/local/share/ca-certificates").mkdir(parents=True, exist_ok=True)
            image = Image(root=root)
        images[stage.name] = image
        for name, value in stage.steps:
            _execute(name, value, image=image, images=images)
    return image


def _execute(name: str, value: str, *, image: Image, images: Mapping[str, Image]) -> None:
    match name:
        case "RUN":
            image.run(value)
        case "ENV":
            image.environment.update(dict(pair.split("=", 1) for pair in shlex.split(value)))
        case "WORKDIR":
            image.directory = value
            (image.root / value.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "USER":
            image.user = value
        case "COPY":
            _copy(shlex.split(value), image=image, images=images)
        case "LABEL" | "EXPOSE" | "ENTRYPOINT" | "CMD":
            image.settings[name] = value
        case _:
            raise AssertionError(f"{name} is not known here")


def _copy(words: list[str], *, image: Image, images: Mapping[str, Image]) -> None:
    if words[0].startswith("--from="):
        stage, source, target = words[0].removeprefix("--from="), words[1], words[2]
        origin, destination = (one.root / path.lstrip("/") for one, path in ((images[stage], source), (image, target)))
        subprocess.run(["cp", "-a", "--reflink=auto", origin, destination], check=True)
        return
    *sources, target = words
    base = image.root / image.directory.lstrip("/")
    for source in sources:
        for path in CONTEXT.files(ROOT):
            if source == ".":
                copied = base / target / path
            elif path == source:
                copied = base / target / path if target.endswith("/") else base / target
            elif path.startswith(f"{source}/"):
                copied = base / target / path.removeprefix(f"{source}/")
            else:
                continue
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, copied)


def make_directory() -> Path:
    """Return a new directory for an image, which other users can enter; in memory if there is room for it."""
    memory = Path("/dev/shm")
    found = os.statvfs(memory) if memory.is_dir() else None
    roomy = found is not None and found.f_bavail * found.f_frsize > _IMAGE_BYTES and not found.f_flag & os.ST_NOEXEC
    directory = Path(tempfile.mkdtemp(prefix="image-", dir=memory if roomy else None))
    directory.chmod(0o755)
    return directory
