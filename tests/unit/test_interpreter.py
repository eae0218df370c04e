"""How an interpreter was built, from the configuration variables of the usual builds."""

from collections.abc import Mapping
from typing import Any

import pytest

from core import interpreter
from core.interpreter import Interpreter

GCC = {
    "PGO_PROF_GEN_FLAG": "-fprofile-generate",
    "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction",
    "PY_CORE_CFLAGS": "-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall -std=c11",
    "PY_CFLAGS_NODIST": "-std=c11 -Wextra -fvisibility=hidden",
}
CLANG = GCC | {
    "PGO_PROF_GEN_FLAG": "-fprofile-instr-generate",
    "PGO_PROF_USE_FLAG": '-fprofile-instr-use="$(shell pwd)/code.profclangd"',
}
LTO = {"PY_CFLAGS_NODIST": "-fno-semantic-interposition -flto -fuse-linker-plugin -ffat-lto-objects -std=c11"}
WITHOUT = "built without profile-guided optimisation"
PROFILE_GUIDED = "built with profile-guided optimisation"
BOTH = "built with link-time and profile-guided optimisation"
BUILDS = {
    "pyenv": (GCC | {"CONFIG_ARGS": "'--prefix=/home/me/.pyenv/versions/3.11.7' '--enable-shared'"}, WITHOUT),
    "pyenv with --enable-optimizations": (GCC | {"CONFIG_ARGS": "'--enable-optimizations'"}, PROFILE_GUIDED),
    "./configure without arguments": (GCC | {"CONFIG_ARGS": ""}, WITHOUT),
    "./configure --with-lto": (GCC | LTO | {"CONFIG_ARGS": "'--with-lto'"}, WITHOUT),
    "disabled again": (GCC | {"CONFIG_ARGS": "'--enable-optimizations' '--enable-optimizations=no'"}, WITHOUT),
    "Debian": (
        GCC | {"CONFIG_ARGS": "'--enable-shared' '--prefix=/usr' '--with-dtrace'", "PGO_PROF_USE_FLAG": ""},
        PROFILE_GUIDED,
    ),
    "Docker": (GCC | LTO | {"CONFIG_ARGS": "'--enable-optimizations' '--enable-shared' '--with-lto'"}, BOTH),
    "Fedora": (
        GCC | LTO | {"CONFIG_ARGS": "'--with-platlibdir=lib64' '--enable-optimizations' '--with-lto' 'CC=gcc'"},
        BOTH,
    ),
    "python.org for macOS": (
        CLANG | {"CONFIG_ARGS": "'--enable-framework' '--enable-optimizations' '--with-lto' 'CFLAGS=-g'"},
        BOTH,
    ),
    "python-build-standalone": (
        CLANG | {"CONFIG_ARGS": "'--prefix=/install' '--enable-optimizations' '--with-lto=thin' '--enable-bolt'"},
        BOTH,
    ),
    "flags of make": (
        GCC | {"CONFIG_ARGS": "", "PY_CORE_CFLAGS": "-O3 -fprofile-use -fprofile-correction"},
        PROFILE_GUIDED,
    ),
}


def build(variables: Mapping[str, Any], *, implementation: str = "CPython") -> Interpreter:
    return interpreter.of_build(implementation=implementation, version="3.11.7", variables=variables)


@pytest.mark.parametrize("name", BUILDS)
def test_the_build_is_described(name: str) -> None:
    variables, description = BUILDS[name]
    assert build(variables).describe() == f"CPython 3.11.7, {description}"


def test_nothing_is_claimed_about_an_unknown_build() -> None:
    windows, pypy = build({"EXE": ".exe"}), build({"CONFIG_ARGS": ""}, implementation="PyPy")
    assert [windows.describe(), pypy.describe()] == ["CPython 3.11.7", "PyPy 3.11.7"]
    assert [windows.is_slow, pypy.is_slow] == [False, False]


def test_only_a_slow_build_has_a_warning() -> None:
    warnings = {name: build(variables).warning() for name, (variables, _) in BUILDS.items()}
    assert {name for name, warning in warnings.items() if warning} == {
        name for name, (_, description) in BUILDS.items() if description == WITHOUT
    }
    assert str(warnings["pyenv"]).startswith(
        "CPython 3.11.7, built without profile-guided optimisation. Responses take"
    )
