"""The licences of all packages that operators install were reviewed."""

import re
from email.message import Message
from email.parser import Parser
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# SPDX identifiers, and the names of classifiers and of the older field `License`.
PERMISSIVE = {
    *("MIT", "MIT License", "MIT-0", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "3-Clause BSD License"),
    *(
        "Apache-2.0",
        "Apache Software License",
        "PSF-2.0",
        "Python Software Foundation License",
        "CNRI-Python",
        "ZPL-2.1",
    ),
}
# They demand the sources of the package itself only. It is unchanged, and replaceable like every other one.
WEAK_COPYLEFT = {"MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)", "LGPL-3.0-only"}
ALLOWED = PERMISSIVE | WEAK_COPYLEFT
# Licences that metadata does not name, by the text in the package.
READ = {"qrcode": "BSD License"}


def installed_packages() -> list[str]:
    """Return the packages of the requirements that this platform needs."""
    files = [ROOT / "requirements" / name for name in ("runtime.txt", "telemetry.txt", "smollm2.txt")]
    names = {name for file in files for name in re.findall(r"^([\w.-]+)==", file.read_text(), re.MULTILINE)}
    return sorted(name for name in names if is_installed(name))


def is_installed(package: str) -> bool:
    """Return true unless only other systems, such as Windows, need the package."""
    try:
        metadata(package)
    except PackageNotFoundError:
        return False
    return True


def names_in(fields: "PackageMetadata | Message[str, str]") -> set[str]:
    """Return every licence that metadata names, in its most precise field."""
    if "License-Expression" in fields:
        return set(re.split(r"\s+(?:AND|OR|WITH)\s+", re.sub(r"[()]", "", fields["License-Expression"])))
    classifiers = [one.split(" :: ")[-1] for one in fields.get_all("Classifier") or [] if one.startswith("License ::")]
    return set(classifiers) - {"OSI Approved"} or set(fields.get_all("License") or ["none"])


def test_every_licence_of_an_installed_package_is_allowed() -> None:
    packages = installed_packages()
    assert len(packages) > 100
    found = {name: {READ[name]} if name in READ else names_in(metadata(name)) for name in packages}
    assert {name: names for name, names in found.items() if not names <= ALLOWED} == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["License-Expression: MPL-2.0 AND (Apache-2.0 OR MIT)"], {"MPL-2.0", "Apache-2.0", "MIT"}),
        (["License: whatever", "Classifier: License :: OSI Approved :: MIT License"], {"MIT License"}),
        (["Classifier: License :: OSI Approved", "License: AGPL-3.0"], {"AGPL-3.0"}),
        (["Classifier: Framework :: Django"], {"none"}),
    ],
)
def test_the_most_precise_metadata_field_is_used(fields: list[str], expected: set[str]) -> None:
    assert names_in(Parser().parsestr("\n".join(fields))) == expected
