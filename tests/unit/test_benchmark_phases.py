"""The phases of a request are read from a trace of system calls."""

import pytest

from benchmarks.request_phases import PHASES, phases_of

TRACE = r"""
100.000000 read(54, "POST /v1/responses HTTP/1.1\r\nHost: 127"..., 256000) = 312
100.001000 sendto(48, "B\0\0\0E\0p_d7c7dd\0\0\0\0\1\0\0"..., 1999, MSG_NOSIGNAL, NULL, 0) = 1999
100.003000 recvfrom(48, "2\0\0\0\4T"..., 16384, 0, NULL, NULL) = 1400
100.006000 write(56, "POST /v1/chat/completions HTTP/1.1\r\nHos"..., 647) = 647
100.006500 read(56, "HTTP/1.1 200 OK\r\nContent-Type: text/eve"..., 256000) = 13943
100.008000 sendto(48, "B\0\0\0E\0p_d7c7dd\0\0\0\0\1\0\0"..., 4420, MSG_NOSIGNAL, NULL, 0) = 4420
100.009000 write(54, "HTTP/1.1 200 OK\r\ndate: Mon"..., 313) = 313
100.009100 write(54, "4aef\r\nevent: response.created\ndata: {"..., 19191) = 19191
100.012000 recvfrom(48, "2\0\0\0\4T"..., 16384, 0, NULL, NULL) = 1400
100.012500 write(54, "616\r\nevent: response.completed\ndata: {"..., 1565) = 1565
100.020000 read(54, "POST /v1/responses HTTP/1.1\r\nHost: 127"..., 256000) = 312
"""


def test_a_trace_has_the_time_of_each_phase_of_complete_requests() -> None:
    (times,) = phases_of(TRACE)
    assert [times[phase] for phase in PHASES] == pytest.approx([1, 2, 3, 0.5, 1.5, 4, 0.5], abs=0.001)
    assert times["first byte"] == pytest.approx(9, abs=0.001)
