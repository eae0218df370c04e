"""Files and archives of skills."""

import base64
import zipfile
from io import BytesIO
from typing import Any

MANIFEST = "---\nname: {name}\ndescription: {description}\n---\n\nRead this first.\n"


def skill_files(
    name: str = "sums", description: str = "Add numbers.", *, folder: str = "sums", **more: str
) -> dict[str, bytes]:
    """Return the files of a skill by path; `more` are further files in its folder."""
    files = {f"{folder}/SKILL.md": MANIFEST.format(name=name, description=description).encode()}
    return files | {f"{folder}/{path}": content.encode() for path, content in more.items()}


def zipped(files: dict[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive of files."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return packed.getvalue()


def unzipped(content: bytes) -> dict[str, bytes]:
    """Return the files of a zip archive by path."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def inline(name: str, archive: bytes, description: str = "Add numbers.") -> Any:
    """Return an inline skill of a request."""
    data = base64.b64encode(archive).decode()
    source = {"type": "base64", "media_type": "application/zip", "data": data}
    return {"type": "inline", "name": name, "description": description, "source": source}
