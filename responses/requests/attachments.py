"""Images and files of an input: checked before a run begins, and their bytes or words found for the model.

What the request brings itself must be in order, or it is a 400 that names the part. What stands in earlier items was in
order once; where it cannot be had any more, the model is told so in words.
"""

import asyncio
import base64
import binascii
import mimetypes
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from conversations.files import storage as files
from conversations.files.extraction import extract_text
from conversations.items import InputFile, StoredItem
from conversations.models import File
from kernel import egress
from kernel.db_threads import in_db_thread
from kernel.errors import (
    ApiError,
    EgressFailed,
    EmptyImage,
    FileTooLarge,
    ImageFileNotFound,
    ImageNotDownloaded,
    ImageTooLarge,
    InvalidBase64Image,
    InvalidFile,
    InvalidImageUrl,
    LimitExceeded,
    NotFound,
    UnsupportedImageType,
    UnsupportedValue,
)
from responses.engine.attachments import (
    Attachment,
    AttachmentFile,
    AttachmentImage,
    AttachmentMap,
    AttachmentText,
    Part,
    all_parts,
    attachment_key,
    parts_of,
)
from responses.requests import parameters
from responses.requests.context import RequestContext
from responses.schema import CreateResponse
from tenants import scope
from tenants.capabilities import Capabilities
from tenants.models import Scope
from tenants.principal import Principal

MIB = 1024 * 1024
MAX_IMAGE = 20 * MIB
MAX_FILE = 32 * MIB
MAX_TOGETHER = 50 * MIB
# Of one request: reading a document takes up to seconds of what all teams share.
MAX_READ = 100
_FETCH_SECONDS = 20.0
_TOGETHER_SECONDS = 60.0
_AT_ONCE = 4
_IMAGE_TYPES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_BEGINNINGS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.ASCII | re.IGNORECASE)
_WEB_URL = re.compile(r"https?://.", re.ASCII | re.IGNORECASE)
_SMALL = 256 * 1024
# Each document has a process of its own while it is read.
_READERS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="documents")

RequestParts = Sequence[tuple[str, Part]]
"""The images and files of a request, each with the path that an error names."""


async def check_attachments(
    *, principal: Principal, body: CreateResponse, context: RequestContext, can: Capabilities
) -> "TeamAttachments | None":
    """Check the images and files of a request, and find what stands behind them and those before; None without any.

    Raises the 400, or the 404 of a file that is not the team's, with the path of the part.
    """
    if isinstance(body.input, str) and not (context.preface or context.history) and len(context.input_items) == 1:
        return None
    given = parameters.input_items(body)
    first = len(context.input_items) - len(given)
    own = [
        (f"input[{position}].{path}", part)
        for position, item in enumerate(context.input_items[first:])
        for path, part in parts_of(item)
    ]
    own += [("prompt.variables", part) for part in all_parts(context.preface)]
    before = [*context.history, *context.input_items[:first]]
    earlier = list(all_parts(before))
    if not own and not earlier:
        return None
    _check_model(own, earlier, can)
    _check_number(own, can)
    if any(part.file_id for _, part in own):
        principal.require(Scope.FILES_READ)
    content = TeamAttachments(principal.team_id)
    await content.require(own, can=can)
    await content.load(before, files=can.files, inline_images=can.inline_images)
    return content


def _check_model(own: RequestParts, earlier: Sequence[Part], can: Capabilities) -> None:
    images = [path for path, part in own if not isinstance(part, InputFile)]
    seen = sum(not isinstance(part, InputFile) for part in earlier)
    if not can.vision and (images or seen):
        raise UnsupportedValue("The model does not read images.", param=images[0] if images else "input")
    if can.max_images is not None and len(images) + seen > can.max_images:
        room = max(0, can.max_images - seen)
        message = f"The model reads at most {can.max_images} images, but {len(images) + seen} are given."
        raise UnsupportedValue(message, param=images[room] if room < len(images) else "input")


def _check_number(own: RequestParts, can: Capabilities) -> None:
    """What is named twice is read once."""
    read: dict[str, str] = {}
    for path, part in own:
        if _is_read(part, can) and (name := attachment_key(part)):
            read.setdefault(name, f"{path}.{_field(part)}")
    if len(read) > MAX_READ:
        param = list(read.values())[MAX_READ]
        raise LimitExceeded(
            f"Invalid '{param}': too many files and images to read. Expected at most {MAX_READ} of them in a request, "
            f"but got {len(read)} instead.",
            param=param,
            code="array_above_max_length",
        )


class TeamAttachments:
    """The engine's `Attachments` for one team. What was found is remembered as long as the run.

    `seconds`: how long looking for all of it may take, the request's own and what stands in its chain together.
    """

    def __init__(self, team_id: str, *, seconds: float = _TOGETHER_SECONDS) -> None:
        self._team_id = team_id
        self._found: dict[str, Attachment] = {}
        self._size = 0
        self._seconds = seconds

    async def require(self, own: RequestParts, *, can: Capabilities) -> None:
        """Find everything, or raise the first thing that is wrong."""
        jobs = [partial(self._require, path, part, can) for path, part in own]
        try:
            async with self._until() as end, asyncio.timeout_at(end):
                await _a_few_at_once(jobs)
        except TimeoutError as error:
            raise EgressFailed("The images and files of the input could not be had in time.", param="input") from error

    async def load(self, items: Sequence[StoredItem], *, files: bool, inline_images: bool) -> AttachmentMap:
        """What was found for these items; what cannot be had is said in words."""
        can = Capabilities(files=files, inline_images=inline_images)
        new = {name: part for part in all_parts(items) if (name := attachment_key(part)) and name not in self._found}
        if new:
            async with self._until() as end:
                await _a_few_at_once([partial(self._or_words, name, part, can, end) for name, part in new.items()])
        return self._found

    def file_texts(self, items: Iterable[StoredItem]) -> list[str]:
        """The texts that stand in the place of files."""
        found = (self._found.get(attachment_key(part) or "") for part in all_parts(items))
        return [attached.text for attached in found if isinstance(attached, AttachmentText)]

    @asynccontextmanager
    async def _until(self) -> AsyncIterator[float]:
        """When the loop's clock has reached this, the time is spent; what is left of it is for whoever comes next."""
        clock = asyncio.get_running_loop().time
        end = clock() + self._seconds
        try:
            yield end
        finally:
            self._seconds = max(0.0, end - clock())

    async def _require(self, path: str, part: Part, can: Capabilities) -> None:
        try:
            if not isinstance(part, InputFile) and part.image_url is not None:
                await _check_image_url(part.image_url)
            name = attachment_key(part)
            if name and name not in self._found and (attached := await self._look(part, can)):
                self._found[name] = attached
        except ApiError as error:
            error.param = f"{path}.{_field(part)}"
            raise

    async def _or_words(self, name: str, part: Part, can: Capabilities, end: float) -> None:
        try:
            attached = await self._look_until(end, part, can)
        except (ApiError, TimeoutError) as error:
            reason = error.message if isinstance(error, ApiError) else "It could not be had in time."
            what = part.filename if isinstance(part, InputFile) and part.filename else part.file_id
            attached = AttachmentText(text=f"[{what or 'This file'} is not available any more. {reason}]")
        if attached:
            self._found[name] = attached

    async def _look_until(self, end: float, part: Part, can: Capabilities) -> Attachment | None:
        if _is_read(part, can) and asyncio.get_running_loop().time() >= end:
            # Not even begun: thousands of documents may be left.
            raise TimeoutError
        async with asyncio.timeout_at(end):
            return await self._look(part, can)

    async def _look(self, part: Part, can: Capabilities) -> Attachment | None:
        """What stands behind a part; None where it can be sent as it is."""
        if not _is_read(part, can):
            return None
        if isinstance(part, InputFile):
            return await self._file(part, can)
        if part.file_id is not None:
            return await self._image_file(part.file_id)
        return await self._remote_image(part.image_url or "")

    # -- images --------------------------------------------------------------------------------------------------------

    async def _image_file(self, file_id: str) -> AttachmentImage:
        try:
            _, content = await self._stored(file_id, MAX_IMAGE)
        except NotFound as error:
            raise ImageFileNotFound(error.message) from error
        except FileTooLarge as error:
            raise ImageTooLarge(error.message) from error
        return await self._image(content)

    async def _remote_image(self, url: str) -> AttachmentImage:
        accept = ("image/*", "application/octet-stream")
        try:
            fetched = await egress.default().get(url, max_bytes=MAX_IMAGE, timeout=_FETCH_SECONDS, accept=accept)
        except EgressFailed as error:
            raise ImageNotDownloaded(error.message.replace("The URL", "The image")) from error
        return await self._image(fetched.content)

    async def _image(self, content: bytes) -> AttachmentImage:
        if not content:
            raise EmptyImage
        kind = next((kind for beginning, kind in _BEGINNINGS.items() if content.startswith(beginning)), None)
        if kind is None and content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            kind = "image/webp"
        if kind is None:
            raise UnsupportedImageType
        self._count(content)
        return AttachmentImage(url=await _data_url(content, kind))

    # -- files ---------------------------------------------------------------------------------------------------------

    async def _file(self, part: InputFile, can: Capabilities) -> Attachment:
        content, filename, kind = await self._bytes(part)
        self._count(content)
        if not content:
            raise InvalidFile("The file is empty.")
        if can.files:
            return AttachmentFile(filename=filename, url=await _data_url(content, kind))
        read = partial(extract_text, content, filename=filename, content_type=kind)
        text = await asyncio.get_running_loop().run_in_executor(_READERS, read)
        return AttachmentText(text=f"{filename}\n\n{text}")

    async def _bytes(self, part: InputFile) -> tuple[bytes, str, str]:
        """A file's content, name and media type, from wherever it comes."""
        if part.file_id is not None:
            file, content = await self._stored(part.file_id, MAX_FILE)
            return content, part.filename or file.filename, file.content_type or _type_of(file.filename)
        if part.file_url is not None:
            fetched = await egress.default().get(part.file_url, max_bytes=MAX_FILE, timeout=_FETCH_SECONDS)
            name = part.filename or unquote(PurePosixPath(urlsplit(fetched.url).path).name) or "file"
            return fetched.content, name, fetched.content_type or _type_of(name)
        name, data = part.filename or "file", part.file_data or ""
        head = _DATA_URL.match(data)
        if head is None:
            return await _decoded(data), name, _type_of(name)
        if not head[2].lower().endswith(";base64"):
            raise InvalidFile("The file's data URL is not in base64.")
        return await _decoded(data[head.end() :]), name, head[1].lower() or _type_of(name)

    async def _stored(self, file_id: str, limit: int) -> tuple[File, bytes]:
        file = await in_db_thread(partial(self._row, file_id))
        if file.size > limit:
            raise FileTooLarge(f"The file is too large: the limit is {limit // MIB} MiB.")
        try:
            content = await files.open_content(file)
        except FileNotFoundError as error:
            raise files.unknown_file(file_id) from error
        return file, b"".join([piece async for piece in files.chunks(content)])

    def _row(self, file_id: str) -> File:
        with scope.team(self._team_id):
            file = files.find_file(team_id=self._team_id, file_id=file_id)
        if file is None:
            raise files.unknown_file(file_id)
        return file

    def _count(self, content: bytes) -> None:
        self._size += len(content)
        if self._size > MAX_TOGETHER:
            limit = MAX_TOGETHER // MIB
            raise FileTooLarge(f"The images and files of the input are too large: the limit is {limit} MiB together.")


async def _check_image_url(url: str) -> None:
    """A data URL is held to what it says; another one is for its server to judge."""
    if _WEB_URL.match(url):
        return
    head = _DATA_URL.match(url)
    if head is None:
        raise InvalidImageUrl
    if head[1].lower() not in _IMAGE_TYPES:
        raise UnsupportedImageType
    if not head[2].lower().endswith(";base64"):
        raise InvalidBase64Image("The image's data URL is not in base64.")
    try:
        content = await _decoded(url[head.end() :])
    except InvalidFile as error:
        raise InvalidBase64Image from error
    if not content:
        raise EmptyImage


async def _decoded(data: str) -> bytes:
    """Base64 as bytes; what is large, in a thread."""
    try:
        if len(data) < _SMALL:
            return base64.b64decode(data, validate=True)
        return await asyncio.to_thread(base64.b64decode, data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidFile("The file's data is not valid base64.") from error


async def _a_few_at_once(jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run the jobs; of what they raise, the first in their order counts. Once one has raised, none is begun."""
    room = asyncio.Semaphore(_AT_ONCE)
    failed = False

    async def one(job: Callable[[], Awaitable[None]]) -> None:
        nonlocal failed
        async with room:
            try:
                # They come to their turns in order, so that all before one that has failed were begun.
                if not failed:
                    await job()
            except BaseException:
                failed = True
                raise

    for outcome in await asyncio.gather(*map(one, jobs), return_exceptions=True):
        if outcome is not None:
            raise outcome


def _is_read(part: Part, can: Capabilities) -> bool:
    """Whether something has to be found for a part, and it cannot be sent as it is."""
    if isinstance(part, InputFile) or part.file_id is not None:
        return True
    return can.inline_images and part.image_url is not None and _WEB_URL.match(part.image_url) is not None


def _field(part: Part) -> str:
    return next((name for name in ("file_id", "file_url", "file_data") if getattr(part, name, None)), "image_url")


def _type_of(filename: str) -> str:
    return mimetypes.guess_type(filename)[0] or "application/octet-stream"


async def _data_url(content: bytes, kind: str) -> str:
    encode = base64.b64encode
    encoded = encode(content) if len(content) < _SMALL else await asyncio.to_thread(encode, content)
    return f"data:{kind};base64,{encoded.decode()}"
