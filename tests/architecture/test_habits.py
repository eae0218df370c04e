"""Habits that CONTRIBUTING describes: few imports, few parameters, nouns."""

import ast
from functools import cache

from tests.architecture.test_structure import imported_modules, modules

MOST_IMPORTS, MOST_PARAMETERS = 20, 6
# Modules with more imports of ours, with their number. A module whose number falls to the limit leaves the table.
IMPORTS = {
    # They put the product together: the URLs of all apps, and the parts of a web and of a worker process.
    "server.api_urls": 27,
    "server.management.commands.worker": 28,
    "server.web.http_server": 21,
    # One function that is an endpoint, a run of one step and a call of an upstream.
    "responses.passthrough.compact": 21,
}
# Functions with more parameters, likewise. They are older than the rule.
PARAMETERS = {
    "console.charts._chart": 9,
    "core.admission.request_bodies.__init__": 7,
    "core.telemetry.metrics.count_usage": 8,
    "launcher.installation.installers.run": 7,
    "seeding.runs.__init__": 7,
    "tenants.audit.audit": 7,
    "tenants.console.audited_admin.audit_row": 8,
    "limits.services.set_budget": 9,
    "tenants.services.add_upstream": 8,
}


@cache
def _counts() -> tuple[dict[str, int], dict[str, int]]:
    """Return the modules with too many imports and the functions with too many parameters, with their numbers."""
    imports, parameters = {}, {}
    for name, path in modules().items():
        if ".migrations." in name:
            continue
        # A decorator of classes is no more a dependency than one of the standard library.
        if (count := len({*imported_modules(path)} - {"core.records"})) > MOST_IMPORTS:
            imports[name] = count
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if (
                    count := len([parameter for parameter in names if parameter not in {"self", "cls"}])
                ) > MOST_PARAMETERS:
                    parameters[f"{name}.{node.name}"] = count
    return imports, parameters


def test_no_module_imports_more_of_our_modules_than_before() -> None:
    imports, _ = _counts()
    assert {name: count for name, count in imports.items() if count > IMPORTS.get(name, MOST_IMPORTS)} == {}
    assert IMPORTS.keys() <= imports.keys(), "remove what has few imports now"


def test_no_function_takes_more_parameters_than_before() -> None:
    _, parameters = _counts()
    assert {name: count for name, count in parameters.items() if count > PARAMETERS.get(name, MOST_PARAMETERS)} == {}
    assert PARAMETERS.keys() <= parameters.keys(), "remove what has few parameters now"


def test_loop_variables_are_nouns() -> None:
    vague = {"each", "found", "given", "it", "known", "one", "other", "them"}
    targets = [
        (name, node.target)
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
    ]
    names = [(name, part.id) for name, target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    assert [(name, variable) for name, variable in names if variable in vague] == []


def test_codes_and_statuses_of_errors_have_names() -> None:
    literals = [
        f"{path}:{call.lineno}"
        for name, path in modules().items()
        if name != "core.errors"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and any(map(_is_literal_code, call.keywords))
    ]
    assert not literals, "write them into a table, such as `core.errors`, or use `HTTPStatus`"


def _is_literal_code(argument: ast.keyword) -> bool:
    """Return true for arguments such as `code="not_found"` and `status=404`; `status="failed"` is that of a run."""
    kinds = {"code": (str, int), "status": (int,), "status_code": (int,)}.get(argument.arg or "", ())
    match argument.value:
        case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, second]):
            values: tuple[ast.expr, ...] = (first, second)
        case ast.UnaryOp(operand=value) | value:
            values = (value,)
    return any(isinstance(value, ast.Constant) and type(value.value) in kinds for value in values)
