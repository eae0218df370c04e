"""Lines of the log: the ids in them, and the two formatters."""

import json
import logging
import logging.config
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.conf import settings
from structlog.contextvars import bound_contextvars

from core.origin import Caller, origin_of, use_origin
from core.telemetry.logs import Access

REQUEST = origin_of(peer="127.0.0.1", forwarded_for="", agent="", request_id="req_1", trusted_proxies=0)


@pytest.fixture
def written() -> Iterator[StringIO]:
    """Return the lines of both handlers of the settings."""
    stream = StringIO()
    configurator: Any = logging.config.DictConfigurator(settings.LOGGING)
    handlers = []
    for name, logger in (("line", logging.getLogger("tests.logs")), ("access", logging.getLogger("access"))):
        handler = logging.StreamHandler(stream)
        handler.setFormatter(configurator.configure_formatter(dict(settings.LOGGING["formatters"][name])))
        logger.addHandler(handler)
        handlers.append((logger, handler))
    yield stream
    for logger, handler in handlers:
        logger.removeHandler(handler)


def failed() -> None:
    try:
        int("broken")
    except ValueError:
        logging.getLogger("tests.logs").exception("it failed", extra={"attempt": 2})


def test_an_error_during_a_request_has_the_id_of_the_request(written: StringIO) -> None:
    with use_origin(REQUEST):
        failed()
    line = json.loads(written.getvalue())
    assert (line["event"], line["level"], line["request_id"], line["attempt"]) == ("it failed", "error", "req_1", 2)
    assert "ValueError: " in line["exception"]


def test_an_error_of_a_background_run_has_the_ids_of_the_run(written: StringIO) -> None:
    with bound_contextvars(request_id="req_creator", response="resp_1"):
        failed()
    line = json.loads(written.getvalue())
    assert (line["request_id"], line["response"]) == ("req_creator", "resp_1")


def test_other_lines_have_no_request_id(written: StringIO) -> None:
    failed()
    assert "request_id" not in json.loads(written.getvalue())


def test_line_breaks_in_a_text_begin_no_line(written: StringIO) -> None:
    forged = '\n{"event": "forged"}\r\x85{"event": "forged"}'
    logging.getLogger("tests.logs").warning("the name %s is odd", forged, extra={"name_of_model": forged})
    Access("GET", f"/v1/{forged}", "req_1", Caller()).write()
    first, second = written.getvalue().rstrip("\n").split("\n")
    assert (json.loads(first)["event"], json.loads(second)["path"]) == (f"the name {forged} is odd", f"/v1/{forged}")
    assert json.loads(first)["name_of_model"] == forged


def test_probes_are_written_only_at_debug(written: StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("access")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    Access("GET", "/livez", "req_1", Caller()).write()
    line = json.loads(written.getvalue())
    assert (line["path"], line["level"], line["status"], line["disconnected"]) == ("/livez", "debug", None, True)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
