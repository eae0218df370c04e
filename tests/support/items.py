"""A complete item of each stored type, as the API returns it."""

from typing import Any

Body = dict[str, Any]

DIRECT = {"type": "direct"}
PROGRAM = {"type": "program", "caller_id": "call_p"}
CACHED = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
DONE = {"status": "completed"}

_MESSAGES: list[Body] = [
    {
        "id": "msg_1",
        "type": "message",
        **DONE,
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Hi", **CACHED},
            {"type": "input_image", "image_url": PIXEL, "detail": "original", **CACHED},
            {"type": "input_image", "file_id": "file-1", "detail": "auto"},
            {"type": "input_file", "file_id": "file-1", "detail": "low"},
            {"type": "input_file", "file_url": "https://example.com/a.pdf", **CACHED},
            {"type": "input_file", "file_data": "aGk=", "filename": "hi.txt"},
        ],
    },
    {
        "id": "msg_2",
        "type": "message",
        **DONE,
        "role": "assistant",
        "phase": "final_answer",
        "content": [
            {
                "type": "output_text",
                "text": "Hello",
                "annotations": [
                    {"type": "file_citation", "file_id": "file-1", "filename": "a.pdf", "index": 1},
                    {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 0, "end_index": 2},
                    {
                        "type": "container_file_citation",
                        "container_id": "cntr_1",
                        "file_id": "cfile_1",
                        "filename": "a.csv",
                        "start_index": 0,
                        "end_index": 2,
                    },
                    {"type": "file_path", "file_id": "file-2", "index": 3},
                ],
                "logprobs": [{"token": "Hello", "logprob": -0.5, "bytes": [72], "top_logprobs": []}],
            },
            {"type": "refusal", "refusal": "No."},
        ],
    },
    {
        "id": "rs_1",
        "type": "reasoning",
        **DONE,
        "summary": [{"type": "summary_text", "text": "It thought."}],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "encrypted_content": "sealed",
    },
]
_CALLS: list[Body] = [
    {
        "id": "fc_1",
        "type": "function_call",
        **DONE,
        "call_id": "call_1",
        "name": "look",
        "arguments": '{"at": "it"}',
        "namespace": "eyes",
        "async": True,
        "caller": PROGRAM,
        "created_by": "me",
    },
    {
        "id": "fco_1",
        "type": "function_call_output",
        **DONE,
        "call_id": "call_1",
        "output": [
            {"type": "input_text", "text": "a cat"},
            {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
            {"type": "input_file", "file_id": "file-1"},
        ],
        "name": "look",
        "namespace": "eyes",
        "caller": PROGRAM,
        "created_by": "me",
    },
    {
        "id": "ctc_1",
        "type": "custom_tool_call",
        **DONE,
        "call_id": "call_2",
        "name": "sql",
        "input": "SELECT 1",
        "namespace": "db",
        "async": False,
        "caller": DIRECT,
        "created_by": "me",
    },
    {
        "id": "ctco_1",
        "type": "custom_tool_call_output",
        **DONE,
        "call_id": "call_2",
        "output": "1",
        "caller": DIRECT,
        "created_by": "me",
    },
    {
        "id": "tsc_1",
        "type": "tool_search_call",
        **DONE,
        "call_id": "call_7",
        "execution": "client",
        "arguments": {"query": "eyes"},
        "created_by": "me",
    },
    {
        "id": "tso_1",
        "type": "tool_search_output",
        **DONE,
        "call_id": "call_7",
        "execution": "client",
        "tools": [FUNCTION],
        "created_by": "me",
    },
]
_ACTIONS: list[Body] = [
    {"type": "click", "button": "left", "x": 1, "y": 2, "keys": ["CTRL"]},
    {"type": "double_click", "x": 1, "y": 2, "keys": ["CTRL"]},
    {"type": "drag", "path": [{"x": 1, "y": 2}, {"x": 3, "y": 4}], "keys": ["CTRL"]},
    {"type": "keypress", "keys": ["ENTER"]},
    {"type": "move", "x": 1, "y": 2, "keys": ["CTRL"]},
    {"type": "screenshot"},
    {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 9, "keys": ["CTRL"]},
    {"type": "type", "text": "Hi"},
    {"type": "wait"},
]
_MACHINES: list[Body] = [
    {
        "id": "cu_1",
        "type": "computer_call",
        **DONE,
        "call_id": "call_3",
        "action": {"type": "screenshot"},
        "actions": _ACTIONS,
        "pending_safety_checks": [{"id": "sc_1", "code": "odd", "message": "Is it?"}],
    },
    {
        "id": "cuo_1",
        "type": "computer_call_output",
        **DONE,
        "call_id": "call_3",
        "output": {"type": "computer_screenshot", "image_url": PIXEL, "file_id": "file-1"},
        "acknowledged_safety_checks": [{"id": "sc_1", "code": "odd", "message": "Is it?"}],
        "created_by": "me",
    },
    {
        "id": "sh_1",
        "type": "shell_call",
        **DONE,
        "call_id": "call_4",
        "action": {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": 9},
        "environment": {"type": "local"},
        "caller": DIRECT,
        "created_by": "me",
    },
    {
        "id": "sho_1",
        "type": "shell_call_output",
        **DONE,
        "call_id": "call_4",
        "max_output_length": 9,
        "output": [
            {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}, "created_by": "me"},
            {"stdout": "", "stderr": "b", "outcome": {"type": "timeout"}},
        ],
        "caller": DIRECT,
        "created_by": "me",
    },
    {
        "id": "lsh_1",
        "type": "local_shell_call",
        **DONE,
        "call_id": "call_5",
        "action": {
            "type": "exec",
            "command": ["ls", "-l"],
            "env": {"A": "b"},
            "timeout_ms": 1000,
            "user": "ada",
            "working_directory": "/",
        },
    },
    {"id": "call_5", "type": "local_shell_call_output", **DONE, "output": '{"stdout": "a"}'},
    {
        "id": "apc_1",
        "type": "apply_patch_call",
        **DONE,
        "call_id": "call_6",
        "operation": {"type": "update_file", "path": "a.py", "diff": "+1"},
        "caller": DIRECT,
        "created_by": "me",
    },
    {
        "id": "apco_1",
        "type": "apply_patch_call_output",
        "status": "failed",
        "call_id": "call_6",
        "output": "No such file",
        "caller": DIRECT,
        "created_by": "me",
    },
]
_HOSTED: list[Body] = [
    {
        "id": "mcpl_1",
        "type": "mcp_list_tools",
        "server_label": "deep",
        "tools": [{"name": "ask", "input_schema": {"a": None}, "description": "Ask.", "annotations": {"b": None}}],
    },
    {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "deep", "name": "ask", "arguments": "{}"},
    {
        "id": "mcpa_1",
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_1",
        "approve": False,
        "reason": "No.",
    },
    {
        "id": "mcp_1",
        "type": "mcp_call",
        "status": "failed",
        "server_label": "deep",
        "name": "ask",
        "arguments": '{"q": 1}',
        "approval_request_id": "mcpr_1",
        "output": None,
        "error": {"type": "mcp_tool_execution_error", "content": [{"text": None}]},
    },
    {
        "id": "fs_1",
        "type": "file_search_call",
        **DONE,
        "queries": ["cats"],
        "results": [
            {
                "file_id": "file-1",
                "filename": "a.pdf",
                "score": 0.5,
                "text": "Meow.",
                "attributes": {"a": 1.5, "b": "c"},
            }
        ],
    },
    {
        "id": "ws_1",
        "type": "web_search_call",
        **DONE,
        "action": {
            "type": "search",
            "query": "cats",
            "queries": ["cats", "dogs"],
            "sources": [{"type": "url", "url": "https://a"}],
        },
    },
    {
        "id": "ci_1",
        "type": "code_interpreter_call",
        **DONE,
        "container_id": "cntr_1",
        "code": "print(1)",
        "outputs": [{"type": "logs", "logs": "1"}, {"type": "image", "url": "https://a/b.png"}],
    },
    {
        "id": "ig_1",
        "type": "image_generation_call",
        "status": "failed",
        "result": "",
        "action": "generate",
        "background": "opaque",
        "output_format": "svg",
        "quality": "xhigh",
        "size": "8x8",
        "revised_prompt": "A cat.",
        "error": {
            "code": "moderation_blocked",
            "message": "No.",
            "param": "prompt",
            "type": "image_generation_user_error",
            "moderation_details": {"categories": ["cats"], "moderation_stage": "input"},
        },
        "svg_usage": {
            "model": "m",
            "input_tokens": 1,
            "output_tokens": 2,
            "reasoning_tokens": 0,
            "total_tokens": 3,
        },
    },
    {"id": "prog_1", "type": "program", "call_id": "call_p", "code": "look()", "fingerprint": "f"},
    {"id": "progo_1", "type": "program_output", **DONE, "call_id": "call_p", "result": "a cat"},
]
_SETTINGS: list[Body] = [
    {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed", "created_by": "me"},
    {
        "id": "cfg_1",
        "type": "configuration_update",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
    },
    {"id": "at_1", "type": "additional_tools", "role": "developer", "tools": [FUNCTION]},
]
SAMPLES = {item["id"]: item for item in [*_MESSAGES, *_CALLS, *_MACHINES, *_HOSTED, *_SETTINGS]}
"""The items by id."""

# Content that only its own server can decrypt, and files and approvals that would have to exist.
_ELSEWHERE = {"cmp_1", "mcpa_1"}
_PLAIN: dict[str, Body] = {
    "msg_1": {"content": [{"type": "input_text", "text": "Hi"}]},
    "fco_1": {"output": [{"type": "input_text", "text": "a cat"}]},
    "cuo_1": {"output": {"type": "computer_screenshot", "image_url": PIXEL}},
    "rs_1": {"encrypted_content": None},
}


def _without_nulls(item: Body) -> Body:
    return {key: value for key, value in item.items() if value is not None}


ITEMS = {
    name: _without_nulls({**item, **_PLAIN[name]}) if name in _PLAIN else item
    for name, item in SAMPLES.items()
    if name not in _ELSEWHERE
}
"""Those that clients can send, one of each type, by id."""
