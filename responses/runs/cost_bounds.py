"""Upper bounds of the quantities for which each kind of call can be billed. Hard budgets reserve their cost.

A token of text has at least one byte. Only the upstream knows the tokens of images, files and compressed audio, so
their maximum is taken from the capabilities of the model: `max_image_tokens`, `max_audio_seconds`, `max_output_tokens`,
or else `context_window`. If none is declared, the quantity is `Unbounded`, and a hard budget refuses the call if the
quantity has a price.
"""

import binascii
import struct
from base64 import b64decode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import ceil
from typing import Any

import orjson

from engine.compaction import token_estimate
from engine.turn import TurnRequest
from limits import UnknownPrice
from tenants.capabilities import Capabilities
from tenants.prices import Maxima, PriceList, Unbounded

AUDIO_TOKENS_PER_SECOND = 100
"""Upper bound of audio tokens per second: OpenAI's models use 10, Gemini 32, Whisper's encoder 50."""
# Audio samples have no lower rates in practice. The rate in a header is not trusted if it is higher than this.
_SLOWEST_BYTES_PER_SECOND = 8_000
_PCM, _FLOAT, _A_LAW, _MU_LAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_UNCOMPRESSED = frozenset({_PCM, _FLOAT, _A_LAW, _MU_LAW})
# Parts of messages and items that are not text: the name of the field with the content, by type of part.
_IMAGES = {"image_url": "image_url", "input_image": "image_url", "computer_screenshot": "image_url"}
_FILES = {"file": "file", "input_file": "file_data"}
_PARTS = frozenset({"content", "output"})
# Number of bytes at the beginning of an audio file in which its format is searched.
_HEAD = 65_536


@dataclass(slots=True)
class _Contents:
    """Contents of the messages of a call: the size of the texts in bytes, and the paths of images, files and audio."""

    text: int = 0
    images: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    audio: list[tuple[str, float | None]] = field(default_factory=list)


def widest(targets: Sequence[Capabilities]) -> Capabilities:
    """Return the capabilities from which the maxima of a call follow that any of several targets may serve."""
    if len(targets) == 1:
        return targets[0]
    return replace(
        targets[0],
        files=any(target.files for target in targets),
        context_window=_largest(target.context_window for target in targets),
        max_output_tokens=_largest(target.max_output_tokens for target in targets),
        max_image_tokens=_largest(target.max_image_tokens for target in targets),
        max_audio_seconds=_largest(target.max_audio_seconds for target in targets),
    )


def _largest(maxima: Iterable[int | None]) -> int | None:
    known = [*maxima]
    return None if None in known else max(filter(None, known), default=0)


def worst_cost(
    prices: Iterable[tuple[str, PriceList]], most: Maxima, tiers: Collection[str] | None
) -> Decimal | UnknownPrice:
    """Return the highest cost of a call that may be charged by any of several price lists, each with its model."""
    costs = [(model, listed.worst_cost(most, tiers=tiers)) for model, listed in prices]
    known = {model: cost for model, cost in costs if cost is not None}
    unpriced = next((model for model, cost in costs if cost is None), None)
    if unpriced is not None:
        return UnknownPrice(unpriced, has_priced_target=unpriced in known)
    return max(cost for _, cost in costs if cost is not None)


def of_text(size: int) -> Maxima:
    """Return the maxima of a call that reads only text; `size` in bytes."""
    return Maxima(input_tokens=size)


def with_text(most: Maxima, text: str) -> Maxima:
    """Return the maxima of a call whose input has a further text."""
    if not isinstance(most.input_tokens, int):
        return most
    return replace(most, input_tokens=most.input_tokens + len(text.encode(errors="surrogatepass")))


def of_body(values: Mapping[str, Any], capabilities: Capabilities) -> Maxima:
    """Return the maxima of a body of chat completions, completions, embeddings or moderations."""
    contents = _Contents(text=len(orjson.dumps({**values, "messages": None, "input": None})))
    for name in ("messages", "input"):
        _read(values.get(name), name, contents)
    most = _input_tokens(contents, capabilities)
    if values.get("web_search_options") is not None:
        # The upstream adds the pages that its search finds to the input.
        most = _window(capabilities, "web_search_options", "The input added by a web search of the model's server")
    return Maxima(input_tokens=most)


def of_turn(request: TurnRequest, capabilities: Capabilities) -> Maxima:
    """Return the maxima of a turn of a run."""
    contents = _Contents(text=token_estimate.most_text_tokens(request))
    for item in request.items:
        _read(item.wire(), "input", contents)
    # The items may come from earlier turns and responses, so the parts have no path in the request.
    contents.images = ["input"] * len(contents.images)
    # A model that cannot read files receives their texts instead.
    contents.files = ["input"] * len(contents.files) if capabilities.files else []
    return Maxima(input_tokens=_input_tokens(contents, capabilities))


def of_transcription(values: Mapping[str, Any], content: bytes, capabilities: Capabilities) -> Maxima:
    """Return the maxima of a transcription or translation of an audio file, billed by its tokens or its seconds."""
    name = "known_speaker_references"
    contents = _Contents(text=len(orjson.dumps({**values, name: None})), audio=[("file", pcm_seconds(content))])
    for url in values.get(name) or ():
        contents.audio.append((name, _seconds_of_base64(url.partition(",")[2])))
    seconds = _audio_seconds(contents.audio, capabilities)
    return Maxima(
        input_tokens=_input_tokens(contents, capabilities),
        output_tokens=_output_tokens(capabilities, "The length of a transcript"),
        audio_seconds=seconds,
    )


def of_speech(values: Mapping[str, Any], capabilities: Capabilities) -> Maxima:
    """Return the maxima of speech, which is billed by its tokens or the characters of its text."""
    return Maxima(
        input_tokens=len(orjson.dumps(values)),
        # Speech may be slow and may contain pauses of any length.
        output_tokens=_output_tokens(capabilities, "The length of speech"),
        characters=len(values["input"]),
    )


def of_images(values: Mapping[str, Any], uploads: int, capabilities: Capabilities) -> Maxima:
    """Return the maxima of generated images and their previews. `uploads` is the number of uploaded images."""
    contents = _Contents(text=len(orjson.dumps(values)), images=["image"] * uploads)
    count, previews = values.get("n") or 1, values.get("partial_images") or 0
    most = _output_tokens(capabilities, "The size of a generated image")
    return Maxima(
        input_tokens=_input_tokens(contents, capabilities),
        output_tokens=most if isinstance(most, Unbounded) else most * count * (1 + previews),
        calls=count,
        is_billed_by_call=True,
    )


def _read(value: Any, path: str, contents: _Contents, *, is_part: bool = True) -> None:
    """Add the contents of a value of a body. Only items and parts of messages can be images, files or audio."""
    match value:
        case str():
            contents.text += len(value.encode(errors="surrogatepass")) + 2
        case list() if any(isinstance(part, str | dict | list) for part in value):
            for index, part in enumerate(value):
                contents.text += 1
                _read(part, f"{path}[{index}]", contents, is_part=is_part)
        case dict():
            media = _media(value, path, contents) if is_part else None
            for name, part in value.items():
                contents.text += len(name.encode(errors="surrogatepass")) + 4
                if name != media:
                    _read(part, f"{path}.{name}", contents, is_part=name in _PARTS)
        case _:
            contents.text += len(orjson.dumps(value))


def _media(part: dict[str, Any], path: str, contents: _Contents) -> str | None:
    """Add a part that is an image, a file or audio. Return the name of the field whose value is not text."""
    match part:
        case {"type": "input_audio", "input_audio": {"data": str() as data}}:
            contents.audio.append((path, _seconds_of_base64(data)))
            return "input_audio"
        case {"type": str() as kind} if kind in _IMAGES:
            contents.images.append(path)
            return _IMAGES[kind]
        case {"type": str() as kind} if kind in _FILES:
            contents.files.append(path)
            return _FILES[kind]
        case {"type": "image_generation_call", "result": str()}:
            contents.images.append(path)
            return "result"
        case {"role": "assistant", "audio": {}}:
            # A reference to an earlier audio answer: only the upstream knows its length.
            contents.audio.append((f"{path}.audio", None))
    return None


def _input_tokens(contents: _Contents, capabilities: Capabilities) -> int | Unbounded:
    tokens = contents.text
    if contents.images:
        if capabilities.max_image_tokens is None:
            return _window(capabilities, contents.images[0], "The size of an image", "max_image_tokens")
        tokens += capabilities.max_image_tokens * len(contents.images)
    if contents.files:
        return _window(capabilities, contents.files[0], "The size of a file")
    if contents.audio:
        seconds = _audio_seconds(contents.audio, capabilities)
        if isinstance(seconds, Unbounded):
            return seconds if capabilities.context_window is None else capabilities.context_window
        tokens += ceil(seconds * AUDIO_TOKENS_PER_SECOND)
    return tokens


def _output_tokens(capabilities: Capabilities, subject: str) -> int | Unbounded:
    """Return the maximum output of an answer if the request does not set a maximum that the upstream enforces."""
    if capabilities.max_output_tokens is not None:
        return capabilities.max_output_tokens
    return _window(capabilities, "model", subject, "max_output_tokens")


def _window(capabilities: Capabilities, param: str, subject: str, *names: str) -> int | Unbounded:
    """Return the model's context window, which no call can exceed, or `Unbounded` if it is not known."""
    if capabilities.context_window is not None:
        return capabilities.context_window
    return _unbounded(param, subject, *names, "context_window")


def _unbounded(param: str, subject: str, *names: str) -> Unbounded:
    listed = " or ".join(f"'{name}'" for name in names)
    return Unbounded(
        param,
        f"{subject} has no known maximum, so a hard budget cannot cover the call. "
        f"The operator can declare a maximum: the capability {listed} of the model.",
    )


def _audio_seconds(audio: Sequence[tuple[str, float | None]], capabilities: Capabilities) -> float | Unbounded:
    total = 0.0
    for param, seconds in audio:
        if seconds is None and capabilities.max_audio_seconds is None:
            return _unbounded(param, "The length of audio other than WAV with PCM", "max_audio_seconds")
        # Some servers round durations up to whole seconds.
        total += ceil(seconds) if seconds is not None else capabilities.max_audio_seconds or 0
    return total


def _seconds_of_base64(data: str) -> float | None:
    try:
        # Decode a part of the text that holds whole bytes.
        head = b64decode(data[: _HEAD * 4], validate=True)
    except (binascii.Error, ValueError):
        return None
    return pcm_seconds(head, len(data))


def pcm_seconds(content: bytes, size: int | None = None) -> float | None:
    """Return the maximum duration of a WAV file in seconds; None for compressed audio and other formats.

    The result is computed from the size of the file and not from the length in its header. `size` is the size of the
    file if `content` is only its beginning.
    """
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    rates, place = [_SLOWEST_BYTES_PER_SECOND], 12
    while place + 8 <= len(content):
        name, length = struct.unpack_from("<4sI", content, place)
        if name == b"data":
            break
        if name == b"fmt ":
            rate = _bytes_per_second(content[place + 8 : place + 8 + length])
            if not rate:
                return None
            rates.append(rate)
        place += 8 + length + length % 2
    else:
        return None
    return (len(content) if size is None else size) / min(rates) if len(rates) > 1 else None


def _bytes_per_second(header: bytes) -> int | None:
    """Return the lowest possible byte rate of the format in a WAV header; None for compressed samples."""
    if len(header) < 16:
        return None
    form, channels, rate, claimed, frame, bits = struct.unpack_from("<HHIIHH", header)
    if form == _EXTENSIBLE and len(header) >= 26:
        [form] = struct.unpack_from("<H", header, 24)
    if form not in _UNCOMPRESSED:
        return None
    rates: list[int] = [claimed, rate * frame, rate * channels * bits // 8]
    return min(rates)
