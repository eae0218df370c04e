"""The Python interpreter: its version, and whether it was built with profile-guided optimisation.

CPython without it takes 10 to 20 % more CPU for a response. Its `./configure` leaves it out by default: interpreters
that pyenv compiles lack it, those of distributions, python.org, Docker and uv have it.
"""

import platform
import re
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ADVICE = (
    "Responses take about 10 to 20 % more CPU than necessary: "
    "use the Python of the distribution or of python.org, or the Docker image."
)


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """An interpreter and its build. `is_profile_guided` is None if the build does not tell."""

    implementation: str
    version: str
    is_profile_guided: bool | None
    is_link_time_optimised: bool

    @property
    def is_slow(self) -> bool:
        """True if the build is known to lack profile-guided optimisation."""
        return self.is_profile_guided is False

    def describe(self) -> str:
        """Return its name, its version and its build if that is known."""
        name = f"{self.implementation} {self.version}"
        if self.is_profile_guided is None:
            return name
        if not self.is_profile_guided:
            return f"{name}, built without profile-guided optimisation"
        link_time = "link-time and " if self.is_link_time_optimised else ""
        return f"{name}, built with {link_time}profile-guided optimisation"

    def warning(self) -> str | None:
        """Return what a slow build costs and which others there are; None for any other build."""
        return f"{self.describe()}. {_ADVICE}" if self.is_slow else None


def current() -> Interpreter:
    """Return the interpreter of this process."""
    return of_build(
        implementation=platform.python_implementation(),
        version=platform.python_version(),
        variables=sysconfig.get_config_vars(),
    )


def of_build(*, implementation: str, version: str, variables: Mapping[str, Any]) -> Interpreter:
    """Return an interpreter from its configuration variables, those of `sysconfig`."""
    arguments = str(variables.get("CONFIG_ARGS") or "")
    flags = " ".join(str(variables.get(name) or "") for name in ("PY_CORE_CFLAGS", "PY_CFLAGS_NODIST"))
    is_profile_guided = (
        _is_enabled("--enable-optimizations", arguments)
        or "-fprofile-use" in flags
        or "-fprofile-instr-use" in flags
        # Debian and Ubuntu pass the flags to make, and remove them from the variables, so that extension modules are
        # not compiled with them. Others have both variables, whether they were used or not.
        or (bool(variables.get("PGO_PROF_GEN_FLAG")) and variables.get("PGO_PROF_USE_FLAG") == "")
    )
    # Windows records no arguments, and other implementations are not built by this `./configure`.
    is_known = implementation == "CPython" and "CONFIG_ARGS" in variables
    return Interpreter(
        implementation=implementation,
        version=version,
        is_profile_guided=is_profile_guided if is_known else None,
        is_link_time_optimised=is_known and (_is_enabled("--with-lto", arguments) or "-flto" in flags),
    )


def _is_enabled(option: str, arguments: str) -> bool:
    # The last one counts; `--with-lto=thin` enables it as well.
    values = re.findall(rf"{option}\b(?:=(\w+))?", arguments)
    return bool(values) and values[-1] != "no"
