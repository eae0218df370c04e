"""Images and files of a request: check them before the run starts, and load their bytes or texts for the model.

Images and files with a URL are downloaded here, with the checks of `core.egress`, and not by the upstream, which may be
able to reach private networks. They are downloaded once per run, and items keep the URL that the client sent.

An invalid attachment of the request itself causes a 400 that names the invalid part. If an attachment of an earlier
item cannot be loaded any more, the model reads a short note instead.
"""

import asyncio
import base64
import binascii
import mimetypes
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from pydantic import ValidationError

from conversations.files import storage as files
from conversations.files.extraction import extract_text
from conversations.items import InputFile, InputImage, StoredItem
from conversations.models import File
from core import egress
from core.db.db_threads import in_db_thread
from core.egress import Fetched
from core.errors import (
    ApiError,
    ArrayTooLong,
    EgressFailed,
    EgressRefused,
    EmptyImage,
    FileTooLarge,
    ImageFileNotFound,
    ImageNotDownloaded,
    ImageTooLarge,
    InvalidBase64Image,
    InvalidFile,
    InvalidImageUrl,
    NotFound,
    UnsupportedImageType,
    UnsupportedValue,
)
from core.json.large_work import in_thread, join_pieces, pause
from engine.attachments import (
    Attachment,
    AttachmentFile,
    AttachmentImage,
    AttachmentMap,
    AttachmentText,
    Part,
    all_parts,
    attachment_key,
    is_data_url,
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
MAX_TOTAL = 50 * MIB
# Maximum per request: extracting the text of a document can take seconds in a process pool that all teams share.
MAX_READ = 100
_TOTAL_EXCEEDED = f"The images and files of the input are too large: the limit is {MAX_TOTAL // MIB} MiB together."
_FETCH_SECONDS = 20.0
_TOTAL_SECONDS = 60.0
_CONCURRENCY = 4
# Maximum number of concurrent downloads of a team in one process: with a request of a hundred bytes, the process may
# have to download and keep in memory as much data as in the largest request body.
_TEAM_DOWNLOADS = 16
# `image/jpg` is a frequent misspelling, which OpenAI accepts.
_IMAGE_TYPES = {"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"}
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.ASCII | re.IGNORECASE)
_WEB_URL = re.compile(r"https?://.", re.ASCII | re.IGNORECASE)
# Larger contents are converted from and to base64 in a thread, because they would block the event loop. The number is a
# multiple of four characters, so that base64 can be decoded in pieces of this size.
_SMALL = 256 * 1024
# Semaphores of downloads by event loop and team.
_downloads: WeakValueDictionary[tuple[int, str], asyncio.Semaphore] = WeakValueDictionary()

RequestParts = Sequence[tuple[str, Part]]
"""The images and files of a request, each with the path of the parameter for error messages."""


async def check_attachments(
    *, principal: Principal, body: CreateResponse, context: RequestContext, can: Capabilities | None
) -> "TeamAttachments | None":
    """Check and load the images and files of a request and of its context. Return None if there are none.

    Without `can`, the defaults of capabilities apply.

    Raises the API error of the first invalid part of the request, with its path. An unknown file causes a 404.
    """
    # Fast path: the frequent case of a single text has no attachments.
    if isinstance(body.input, str) and not (context.preface or context.history) and len(context.input_items) == 1:
        return None
    given = parameters.input_items(body)
    first = len(context.input_items) - len(given)
    own = [
        (f"input[{position}].{path}.{_field(part)}", part)
        for position, item in enumerate(context.input_items[first:])
        for path, part in parts_of(item)
    ]
    own += [(f"prompt.variables.{_field(part)}", part) for part in all_parts(context.preface)]
    before = [*context.history, *context.input_items[:first]]
    earlier = list(all_parts(before))
    if not own and not earlier:
        return None
    can = can or Capabilities()
    images = [param.rpartition(".")[0] for param, part in own if not isinstance(part, InputFile)]
    seen = sum(not isinstance(part, InputFile) for part in earlier)
    if not can.vision and (images or seen):
        raise UnsupportedValue("The model does not support images.", param=images[0] if images else "input")
    if can.max_images is not None and len(images) + seen > can.max_images:
        room = max(0, can.max_images - seen)
        raise UnsupportedValue(
            f"The model supports at most {can.max_images} images, but the input has {len(images) + seen}.",
            param=images[room] if room < len(images) else "input",
        )
    _check_count(own, can)
    # Checked only for the request's own files. Files of earlier items were permitted when they were sent.
    if any(part.file_id for _, part in own):
        principal.require(Scope.FILES_READ)
    attachments = TeamAttachments(principal.team_id)
    await attachments.load_required(own, can=can)
    await attachments.load(before, files=can.files, inline_images=can.inline_images)
    return attachments


async def load_image_urls(urls: Sequence[tuple[str, str]], *, team_id: str, can: Capabilities) -> dict[str, str]:
    """Return, by image URL of a request, the URL to send upstream. For endpoints that forward the client's JSON.

    `urls` are pairs of a parameter and its URL. Raises the API error of the first invalid URL.
    """
    own = [(param, _image(url, param)) for param, url in urls]
    _check_count(own, can)
    attachments = TeamAttachments(team_id)
    await attachments.load_required(own, can=can)
    return attachments.image_urls(part for _, part in own)


def _image(url: str, param: str) -> InputImage:
    try:
        return InputImage(image_url=url)
    except ValidationError as error:
        # The schemas of these endpoints have other limits than the schemas of items.
        raise (ImageTooLarge if url else InvalidImageUrl)(param=param) from error


def _check_count(own: RequestParts, can: Capabilities) -> None:
    # A part that occurs twice is loaded only once.
    read: dict[str, str] = {}
    for param, part in own:
        if _is_read(part, can):
            read.setdefault(attachment_key(part), param)
    if len(read) > MAX_READ:
        param = list(read.values())[MAX_READ]
        raise ArrayTooLong(
            f"Invalid '{param}': too many files and images to read. Expected at most {MAX_READ} of them in a request, "
            f"but got {len(read)} instead.",
            param=param,
        )


class TeamAttachments:
    """Implementation of the engine's `Attachments` for one team. Loaded attachments are kept until the run ends.

    `seconds` is the total time for loading, shared by the attachments of the request and of its context.
    """

    def __init__(self, team_id: str, *, seconds: float = _TOTAL_SECONDS) -> None:
        self._team_id = team_id
        self._found: dict[str, Attachment] = {}
        self._size = 0
        self._seconds = seconds

    async def load_required(self, own: RequestParts, *, can: Capabilities) -> None:
        """Load the attachments of a request. Raises the API error of the first invalid or missing attachment."""
        # A part that occurs twice is loaded only once.
        first: dict[str, tuple[str, Part]] = {}
        for param, part in own:
            first.setdefault(attachment_key(part), (param, part))
        jobs = [partial(self._require, param, part, can) for param, part in first.values()]
        try:
            async with self._until() as end, asyncio.timeout_at(end):
                await _run_concurrently(jobs)
        except TimeoutError as error:
            param = next(iter(first.values()))[0].partition("[")[0]
            raise EgressFailed("The images and files of the input could not be loaded in time.", param=param) from error
        if excess := self._beyond_total(own):
            raise FileTooLarge(_TOTAL_EXCEEDED, param=excess[0][0])

    async def load(self, items: Sequence[StoredItem], *, files: bool, inline_images: bool) -> AttachmentMap:
        """Load the attachments of these items. Attachments that cannot be loaded are replaced by a note."""
        can = Capabilities(files=files, inline_images=inline_images)
        # The newest attachments come first, because the oldest are left out if the total size is too large.
        parts = [(attachment_key(part), part) for part in all_parts(items)][::-1]
        named = dict(parts)
        forwarded = {
            name: _checked_or_note(part, url)
            for name, part in named.items()
            if not inline_images and (url := _web_url(part)) is not None
        }
        new = {name: part for name, part in named.items() if name not in self._found and name not in forwarded}
        if new:
            async with self._until() as end:
                await _run_concurrently(
                    [partial(self._load_or_note, name, part, can, end) for name, part in new.items()]
                )
        # Forwarded URLs are not kept, because another upstream of the run, which moderates or edits the image, may need
        # the content of the image.
        changed: dict[str, Attachment] = {**forwarded}
        for name, part in self._beyond_total(parts):
            changed[name] = _note(part, FileTooLarge(_TOTAL_EXCEEDED))
        return {**self._found, **changed} if changed else self._found

    def image_urls(self, parts: Iterable[InputImage]) -> dict[str, str]:
        """Return, by image URL, the URL to send upstream: a data URL if the image was loaded, else the same URL."""
        loaded = ((part.image_url or "", self._found.get(attachment_key(part))) for part in parts)
        return {url: image.url if isinstance(image, AttachmentImage) else url for url, image in loaded}

    def file_texts(self, items: Iterable[StoredItem]) -> list[str]:
        """Return the texts that the model reads in place of files."""
        found = (self._found.get(attachment_key(part)) for part in all_parts(items))
        return [attached.text for attached in found if isinstance(attached, AttachmentText)]

    @asynccontextmanager
    async def _until(self) -> AsyncIterator[float]:
        """Yield the event loop time at which the total time is used up. Later calls get the remaining time."""
        clock = asyncio.get_running_loop().time
        end = clock() + self._seconds
        try:
            yield end
        finally:
            self._seconds = max(0.0, end - clock())

    async def _require(self, param: str, part: Part, can: Capabilities) -> None:
        try:
            if not can.inline_images and (url := _web_url(part)) is not None:
                egress.default().check(url)
                return
            if not isinstance(part, InputFile) and part.image_url is not None and is_data_url(part.image_url):
                await _check_data(part.image_url)
            name = attachment_key(part)
            if name not in self._found and (attached := await self._fetch(part, can)):
                self._found[name] = attached
        except ApiError as error:
            # The storage and the extraction do not know the part of the request, so their errors do not name it.
            error.param = param
            raise

    async def _load_or_note(self, name: str, part: Part, can: Capabilities, end: float) -> None:
        try:
            attached = await self._fetch_until(end, part, can)
        except (ApiError, TimeoutError) as error:
            attached = _note(part, error)
        if attached:
            self._found[name] = attached

    async def _fetch_until(self, end: float, part: Part, can: Capabilities) -> Attachment | None:
        if _is_read(part, can) and asyncio.get_running_loop().time() >= end:
            # Do not start any more, because thousands of documents may be left.
            raise TimeoutError
        async with asyncio.timeout_at(end):
            return await self._fetch(part, can)

    async def _fetch(self, part: Part, can: Capabilities) -> Attachment | None:
        """Load a part. Return None if the part has no content."""
        if isinstance(part, InputFile):
            return await self._file(part, can)
        if part.file_id is not None:
            try:
                _, content = await self._stored(part.file_id, MAX_IMAGE)
            except NotFound as error:
                raise ImageFileNotFound(error.message) from error
            except FileTooLarge as error:
                raise ImageTooLarge(error.message) from error
            return await self._image(content)
        if part.image_url is None:
            return None
        if is_data_url(part.image_url):
            return AttachmentImage(url=part.image_url)
        if not _WEB_URL.match(part.image_url):
            raise InvalidImageUrl
        try:
            fetched = await self._download(part.image_url, MAX_IMAGE, headers={"accept": "image/*"})
        except EgressFailed as error:
            raise ImageNotDownloaded(error.message.replace("The URL", "The image")) from error
        return await self._image(fetched.content)

    async def _download(self, url: str, max_bytes: int, *, headers: Mapping[str, str] | None = None) -> Fetched:
        slots = asyncio.Semaphore(_TEAM_DOWNLOADS)
        async with _downloads.setdefault((id(asyncio.get_running_loop()), self._team_id), slots):
            return await egress.default().get(url, max_bytes=max_bytes, timeout=_FETCH_SECONDS, headers=headers)

    async def _image(self, content: bytes) -> AttachmentImage:
        if not content:
            raise EmptyImage
        kind = next((kind for beginning, kind in _SIGNATURES.items() if content.startswith(beginning)), None)
        if kind is None and content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            kind = "image/webp"
        if kind is None:
            raise UnsupportedImageType
        self._count(len(content))
        return AttachmentImage(url=await _data_url(content, kind))

    async def _file(self, part: InputFile, can: Capabilities) -> Attachment:
        if part.file_id is not None:
            file, content = await self._stored(part.file_id, MAX_FILE)
            filename, kind = part.filename or file.filename, file.content_type or _type_of(file.filename)
        elif part.file_url is not None:
            fetched = await self._download(part.file_url, MAX_FILE)
            filename = part.filename or unquote(PurePosixPath(urlsplit(fetched.url).path).name) or "file"
            content, kind = fetched.content, fetched.content_type or _type_of(filename)
        else:
            filename, data = part.filename or "file", part.file_data or ""
            head = _DATA_URL.match(data)
            if head is not None and not head[2].lower().endswith(";base64"):
                raise InvalidFile("The file's data URL is not base64-encoded.")
            content = await _decoded(data, head.end() if head else 0)
            kind = (head[1].lower() if head else "") or _type_of(filename)
        self._count(len(content))
        if not content:
            raise InvalidFile("The file is empty.")
        if can.files:
            return AttachmentFile(filename=filename, url=await _data_url(content, kind))
        text = await extract_text(content, filename=filename, content_type=kind)
        return AttachmentText(text=f"{filename}\n\n{text}")

    async def _stored(self, file_id: str, limit: int) -> tuple[File, bytes]:
        def find() -> File | None:
            with scope.team(self._team_id):
                return files.find_file(team_id=self._team_id, file_id=file_id)

        if (file := await in_db_thread(find)) is None:
            raise files.unknown_file(file_id)
        if file.size > limit:
            raise FileTooLarge(f"The file is too large: the limit is {limit // MIB} MiB.")
        try:
            content = await files.open_content(file)
        except FileNotFoundError as error:
            raise files.unknown_file(file_id) from error
        return file, b"".join([piece async for piece in files.chunks(content)])

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > MAX_TOTAL:
            raise FileTooLarge(_TOTAL_EXCEEDED)

    def _beyond_total(self, parts: RequestParts) -> RequestParts:
        """Return the parts that exceed the maximum total size of attachments for the model."""
        # Every occurrence counts, because a short request can repeat the URL of an image thousands of times.
        sizes = accumulate(_size_of(self._found.get(attachment_key(part))) for _, part in parts)
        return [entry for entry, size in zip(parts, sizes, strict=True) if size > MAX_TOTAL]


def _size_of(attached: Attachment | None) -> int:
    match attached:
        case AttachmentImage(url=url) | AttachmentFile(url=url):
            return len(url) * 3 // 4
        case AttachmentText(text=text):
            return len(text)
    return 0


def _note(part: Part, error: ApiError | TimeoutError) -> AttachmentText:
    reason = error.message if isinstance(error, ApiError) else "It could not be loaded in time."
    kind = "file" if isinstance(part, InputFile) or part.file_id else "image"
    label = part.filename if isinstance(part, InputFile) and part.filename else part.file_id
    return AttachmentText(text=f"[{label or f'This {kind}'} is no longer available. {reason}]")


def _checked_or_note(part: Part, url: str) -> AttachmentImage | AttachmentText:
    try:
        egress.default().check(url)
    except EgressRefused as error:
        return _note(part, error)
    return AttachmentImage(url=url)


async def _check_data(url: str) -> None:
    head = _DATA_URL.match(url)
    if head is None:
        raise InvalidImageUrl
    if head[1].lower() not in _IMAGE_TYPES:
        raise UnsupportedImageType
    if not head[2].lower().endswith(";base64"):
        raise InvalidBase64Image("The image's data URL is not base64-encoded.")
    try:
        content = await _decoded(url, head.end())
    except InvalidFile as error:
        raise InvalidBase64Image from error
    if not content:
        raise EmptyImage


async def _decoded(data: str, start: int = 0) -> bytes:
    try:
        if len(data) < _SMALL:
            return base64.b64decode(data[start:], validate=True)
        return await in_thread(partial(_decode_in_pieces, data, start))
    except (binascii.Error, ValueError) as error:
        raise InvalidFile("The file's data is not valid base64.") from error


def _decode_in_pieces(data: str, start: int) -> bytes:
    # Decoding holds the interpreter lock: 140 ms for 20 MB at once, but only 2 ms for a piece.
    if data.find("=", start, -2) >= 0:
        raise binascii.Error
    return join_pieces(_decoded_pieces(data, start), size=(len(data) - start) * 3 // 4)


def _decoded_pieces(data: str, start: int) -> Iterator[bytes]:
    for at in range(start, len(data), _SMALL):
        yield base64.b64decode(data[at : at + _SMALL], validate=True)
        pause()


async def _run_concurrently(jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run the jobs, a few at a time. After a failure, start no more and raise the error of the first failed job."""
    semaphore = asyncio.Semaphore(_CONCURRENCY)
    failed = False

    async def run(job: Callable[[], Awaitable[None]]) -> None:
        nonlocal failed
        async with semaphore:
            try:
                # The semaphore admits jobs in order, so all jobs before a failed job have started. Therefore the error
                # that is raised does not depend on timing.
                if not failed:
                    await job()
            except BaseException:
                failed = True
                raise

    for outcome in await asyncio.gather(*map(run, jobs), return_exceptions=True):
        if outcome is not None:
            raise outcome


def _is_read(part: Part, can: Capabilities) -> bool:
    """Return true if the content of a part is not in the request, so that it takes time to load."""
    if isinstance(part, InputFile) or part.file_id is not None:
        return True
    return can.inline_images and _web_url(part) is not None


def _web_url(part: Part) -> str | None:
    """Return the URL of an image on the web, or None for any other part."""
    if isinstance(part, InputFile) or part.file_id is not None or part.image_url is None:
        return None
    return part.image_url if _WEB_URL.match(part.image_url) else None


def _field(part: Part) -> str:
    return next((name for name in ("file_id", "file_url", "file_data") if getattr(part, name, None)), "image_url")


def _type_of(filename: str) -> str:
    return mimetypes.guess_type(filename)[0] or "application/octet-stream"


async def _data_url(content: bytes, kind: str) -> str:
    encode = base64.b64encode
    encoded = encode(content) if len(content) < _SMALL else await in_thread(partial(encode, content))
    return f"data:{kind};base64,{encoded.decode()}"
