"""Request bodies of `/v1/skills`: uploaded files and the change of the default version."""

import asyncio
from typing import Annotated

from pydantic import Field

from core.errors import InvalidValue, MissingParameter, UnknownParameter
from core.http.rendering import parse_directory_form
from core.http.validation import parse_json
from core.http.wire import Wire
from skills.bundle import Bundle, BundleFile, is_zip
from skills.reader import read_archive, read_files

# SDKs send a list as `files[]`, and one file as `files`.
_FILES = ("files", "files[]")
_BOOLEANS = {"true": True, "false": False}


class UpdateSkill(Wire):
    """Update the default version pointer for a skill."""

    default_version: Annotated[str, Field(pattern=r"^([1-9][0-9]{0,8}|latest)$")]


async def read_skill(body: bytes, content_type: str) -> Bundle:
    """Read the files of a new skill."""
    bundle, _ = await _read_form(body, content_type, takes_default=False)
    return bundle


async def read_version(body: bytes, content_type: str) -> tuple[Bundle, bool]:
    """Read the files of a new version, and whether it becomes the default."""
    return await _read_form(body, content_type, takes_default=True)


async def _read_form(body: bytes, content_type: str, *, takes_default: bool) -> tuple[Bundle, bool]:
    if not content_type.startswith("multipart/form-data"):
        # Only a form can contain files. Invalid JSON is reported as such, valid JSON as a request without files.
        parse_json(body or b"{}")
        raise MissingParameter("files")
    fields, parts = await asyncio.to_thread(parse_directory_form, body, content_type)
    is_default = False
    for name, text in fields.items():
        if name != "default" or not takes_default:
            raise UnknownParameter(name)
        if str(text).lower() not in _BOOLEANS:
            raise InvalidValue("Invalid 'default': expected 'true' or 'false'.", param="default")
        is_default = _BOOLEANS[str(text).lower()]
    if unknown := next((part.field for part in parts if part.field not in _FILES), None):
        raise UnknownParameter(unknown)
    if not parts:
        raise MissingParameter("files")
    if len(parts) == 1 and is_zip(parts[0].content):
        return await read_archive(parts[0].content, param="files"), is_default
    files = (BundleFile(path=part.path, content=part.content) for part in parts)
    return await read_files(files, param="files"), is_default
