"""Configuration of the package index, and the download of one wheel from it. Uses the standard library only.

uv and pip read different configuration. Behind a mirror usually only pip is configured, so pip's configuration is
translated for uv.
"""

import hashlib
import os
import re
import ssl
import sys
import zipfile
from collections.abc import Mapping
from configparser import Error as ConfigurationError
from configparser import RawConfigParser
from html import unescape
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithPriorAuth, HTTPSHandler, ProxyHandler, build_opener

DEFAULT_INDEX = "https://pypi.org/simple"
UV_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
# Variables that would make the installers install elsewhere than in the environment, or nothing.
MISDIRECTING = (
    *("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_DRY_RUN", "PIP_PYTHON", "PIP_REQUIRE_VIRTUALENV"),
    *("UV_SYSTEM_PYTHON", "UV_BREAK_SYSTEM_PACKAGES", "UV_PYTHON", "UV_PROJECT", "UV_WORKING_DIR", "VIRTUAL_ENV"),
)
TIMEOUT = 30.0


def pip_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's configured options by their long names without dashes, as `pip config list` would."""
    home, prefix = Path(environment.get("HOME") or "~").expanduser(), Path(sys.prefix)
    user = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", user / "pip/pip.conf"]
    if sys.platform == "darwin":
        files[:1] = [Path("/Library/Application Support/pip/pip.conf")]
        files.append(home / "Library/Application Support/pip/pip.conf")
    files += [prefix / "pip.conf", *(Path(name) for name in [environment.get("PIP_CONFIG_FILE")] if name)]
    # If PIP_CONFIG_FILE is `os.devnull`, pip reads no file at all.
    parser = RawConfigParser()
    for file in files if environment.get("PIP_CONFIG_FILE") != os.devnull else ():
        try:
            parser.read(file, encoding="utf-8")
        except (ConfigurationError, UnicodeDecodeError):
            continue  # pip, if it has to run, reports it
    options: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            options |= {
                name.lower().replace("_", "-").removeprefix("--"): value for name, value in parser[section].items()
            }
    prefixed = {name: value for name, value in environment.items() if name.startswith("PIP_") and value}
    options |= {name.removeprefix("PIP_").lower().replace("_", "-"): value for name, value in prefixed.items()}
    return options


def installer_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for uv and pip. uv uses pip's configuration, unless it has an index of its own."""
    options = pip_options(environment)
    result = {name: value for name, value in environment.items() if name not in MISDIRECTING}
    defaults = {
        "UV_PYTHON_DOWNLOADS": "never",
        "SSL_CERT_FILE": options.get("cert"),
        "SSL_CLIENT_CERT": options.get("client-cert"),
        "UV_INSECURE_HOST": options.get("trusted-host"),
        "HTTP_PROXY": options.get("proxy"),
        "HTTPS_PROXY": options.get("proxy"),
        "UV_HTTP_TIMEOUT": options.get("timeout") or options.get("default-timeout"),
    }
    configuration = Path(environment.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "uv" / "uv.toml"
    files = [configuration, Path("/etc/uv/uv.toml"), Path("/etc/xdg/uv/uv.toml")]
    if not any(environment.get(name) for name in UV_INDEXES) and not any(file.exists() for file in files):
        links = options.get("find-links", "").split()
        defaults |= {
            "UV_DEFAULT_INDEX": options.get("index-url"),
            "UV_INDEX": " ".join(options.get("extra-index-url", "").split()),
            # pip ignores directories that do not exist; uv fails.
            "UV_FIND_LINKS": ",".join(link for link in links if "://" in link or Path(link).exists()),
            # Like pip, uv takes the best match of all indexes. The hashes decide which files may be installed.
            "UV_INDEX_STRATEGY": "unsafe-best-match" if options.get("extra-index-url") else None,
        }
    elif index := environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL"):
        defaults["PIP_INDEX_URL"] = options.get("index-url") or index
    lowercase = {name: name.lower() for name in ("HTTP_PROXY", "HTTPS_PROXY")}
    for name, value in defaults.items():
        if value and not result.get(name) and not result.get(lowercase.get(name, name)):
            result[name] = value
    return result


def project_page(*, package: str, environment: Mapping[str, str]) -> str:
    """Return the URL of the list of the package's files in the configured index."""
    index = environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")
    return f"{(index or pip_options(environment).get('index-url') or DEFAULT_INDEX).rstrip('/')}/{package}/"


def download_program(*, package: str, requirement: str, target: Path, environment: Mapping[str, str]) -> None:
    """Write the executable file that the wheel of the pinned, hashed requirement contains to ``target``.

    Raises OSError if the index cannot be reached or the disk cannot be written, ValueError if the index offers no
    wheel for this machine that has one of the hashes.
    """
    options = pip_options(environment)
    version = re.findall(rf"^{package}==([^\s;\\]+)", requirement)[0]
    hashes = set(re.findall(r"sha256:([0-9a-f]{64})", requirement))
    page = project_page(package=package, environment=environment)
    text = _get(page, environment=environment, options=options).decode(errors="replace")
    for link in re.findall(r"""href=["']([^"']+)["']""", text):
        url = urljoin(page, unescape(link))
        name = unquote(urlsplit(url).path).rpartition("/")[2]
        if name.startswith(f"{package}-{version}-") and _fits_this_machine(name):
            wheel = _get(url, environment=environment, options=options)
            break
    else:
        raise ValueError(f"{page} has no wheel of {package} {version} for this machine.")
    if hashlib.sha256(wheel).hexdigest() not in hashes:
        raise ValueError(f"{url} does not have one of the expected hashes.")
    with zipfile.ZipFile(BytesIO(wheel)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(f".data/scripts/{package}"))
        part = target.with_name(f"{target.name}.part")
        part.write_bytes(archive.read(name))
    part.chmod(0o755)
    part.replace(target)


def _fits_this_machine(wheel: str) -> bool:
    system = "macosx"
    if sys.platform != "darwin":
        try:
            system = "manylinux" if os.confstr("CS_GNU_LIBC_VERSION") else "musllinux"
        except (ValueError, OSError):
            system = "musllinux"
    tags = wheel.removesuffix(".whl").rpartition("-")[2].split(".")
    return any(tag.startswith(system) and tag.endswith(f"_{os.uname().machine}") for tag in tags)


def _get(url: str, *, environment: Mapping[str, str], options: Mapping[str, str]) -> bytes:
    parts = urlsplit(url)
    location = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    context = ssl.create_default_context(cafile=environment.get("SSL_CERT_FILE") or options.get("cert"))
    opener = build_opener(HTTPSHandler(context=context))
    if proxy := options.get("proxy"):
        opener.add_handler(ProxyHandler({"http": proxy, "https": proxy}))
    if parts.username:
        passwords = HTTPPasswordMgrWithPriorAuth()
        password = unquote(parts.password or "")
        passwords.add_password(None, location, unquote(parts.username), password, is_authenticated=True)
        opener.add_handler(HTTPBasicAuthHandler(passwords))
    opener.addheaders = [("Accept", "text/html"), ("User-Agent", "responses-platform")]
    with opener.open(location, timeout=TIMEOUT) as response:
        content: bytes = response.read()
    return content
