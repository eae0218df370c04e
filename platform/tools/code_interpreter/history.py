"""Programs of the code interpreter as the model reads them in later turns."""

import orjson

from conversations.items import CodeInterpreterCall, CodeLogs
from providers.hosted_calls import PastCall


def past_call(item: CodeInterpreterCall) -> PastCall:
    """Return the program of an item, with its output."""
    if item.outputs is None:
        # Clients only get outputs that they ask for with `include`, and may send the item back without them.
        output = "The outputs are not available."
    else:
        logs = [output.logs for output in item.outputs if isinstance(output, CodeLogs)]
        made = [file.path for file in item.files or () if not file.gone]
        files = [f"Files written: {', '.join(made)}"] if made else []
        output = "\n".join([*logs, *files]) or "(no output)"
    arguments = orjson.dumps({"code": item.code or ""}).decode()
    return PastCall(id=item.id or "code_interpreter", name="code_interpreter", arguments=arguments, output=output)
