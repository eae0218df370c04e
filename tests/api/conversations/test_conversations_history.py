"""Random histories of conversations compared with plain lists: items that models read, listings, and their order."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.api import Api, ok
from tests.support.chunks import text
from tests.support.conversations import add, begin, items
from tests.support.sampling import SEED, sized
from tests.support.upstream import Script, refusal, stream

KINDS = (
    *("create", "append", "append", "delete item", "fork", "delete"),
    *("respond", "respond", "stream", "stream", "unstored", "fail", "chain", "chain", "delete response"),
)
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.integers(0, 9)), max_size=20)
RoleAndText = tuple[str, str]
"""Role and text of a message."""


@dataclass
class ExpectedState:
    """Expected items of each conversation and of each chain of a team."""

    api: Api
    script: Script
    lists: dict[str, list[RoleAndText]] = field(default_factory=dict)
    chains: dict[str, list[RoleAndText]] = field(default_factory=dict)
    followed: set[str] = field(default_factory=set)
    numbers: "count[int]" = field(default_factory=count)

    def step(self, kind: str, which: int, where: int) -> None:
        """Perform a random step, or create the first conversation."""
        names = list(self.lists)
        one = names[which % len(names)] if names else ""
        expected = self.lists.get(one, [])
        match kind:
            case "append" if one:
                self._append(one, where % 3 + 1)
            case "delete item" if expected:
                self._delete_item(one, where % len(expected))
            case "fork" if expected:
                self._fork(one, where % len(expected))
            case "delete" if one:
                ok(self.api.delete(f"/conversations/{one}"))
                del self.lists[one]
            case "respond" | "stream" | "unstored" if one:
                self._continue(one, kind)
            case "fail" if one:
                self._fail(one)
            case "chain":
                self._chain(which)
            case "delete response" if self.chains:
                self._delete_response(which)
            case _:
                name = begin(self.api)
                self.lists[name] = []
                self._append(name, which % 3)

    def check(self) -> None:
        """Compare the listed items with the expected ones."""
        for one, expected in self.lists.items():
            listed = [(item["role"], item["content"][0]["text"]) for item in items(self.api, one)]
            assert listed == expected

    def _words(self) -> str:
        return f"words {next(self.numbers)}"

    def _append(self, one: str, length: int) -> None:
        words = [self._words() for _ in range(length)]
        if words:
            add(self.api, one, *words)
        self.lists[one] += [("user", word) for word in words]

    def _delete_item(self, one: str, at: int) -> None:
        item = items(self.api, one)[at]
        ok(self.api.delete(f"/conversations/{one}/items/{item['id']}"))
        del self.lists[one][at]

    def _fork(self, one: str, at: int) -> None:
        item = items(self.api, one)[at]
        fork = ok(self.api.post(f"/conversations/{one}/fork", {"after": item["id"]}))["id"]
        self.lists[fork] = self.lists[one][: at + 1]

    def _continue(self, one: str, kind: str) -> None:
        before = self.lists[one]
        response, answer_items = self._ask(before, kind, conversation=one)
        self.lists[one] = [*before, *answer_items]
        assert response["conversation"] == {"id": one}

    def _chain(self, which: int) -> None:
        names = list(self.chains)
        before = names[which % len(names)] if names and which % 3 else None
        follows = {"previous_response_id": before} if before else {}
        expected = self.chains[before] if before else []
        response, answer_items = self._ask(expected, "stream" if which % 2 else "respond", **follows)
        self.chains[response["id"]] = [*expected, *answer_items]
        self.followed |= {before} if before else set()

    def _delete_response(self, which: int) -> None:
        """Delete the last response of a chain; test_deleted_links.py covers the others."""
        ends = [name for name in self.chains if name not in self.followed]
        name = ends[which % len(ends)]
        ok(self.api.delete(f"/responses/{name}"))
        del self.chains[name]

    def _ask(self, before: list[RoleAndText], kind: str, **body: Any) -> tuple[dict[str, Any], list[RoleAndText]]:
        """Create a response; the model must receive exactly the earlier messages and the input."""
        words, answer = self._words(), self._words()
        self.script.then(stream(*text(answer)))
        request = {"model": self.script.model, "input": words, "store": kind != "unstored", **body}
        response = self.api.events(**request)[-1]["response"] if kind == "stream" else self.api.create(**request)
        read = [(message["role"], message["content"]) for message in self.script.messages[-1]]
        assert read == [*before, ("user", words)]
        return response, [("user", words), ("assistant", answer)]

    def _fail(self, one: str) -> None:
        self.script.then(refusal(500))
        body = {"model": self.script.model, "input": self._words(), "conversation": one}
        assert self.api.post("/responses", body).status_code == 500


def play(api: Api, script: Script, steps: list[tuple[str, int, int]]) -> None:
    state = ExpectedState(api, script)
    for step in steps:
        state.step(*step)
        state.check()


@pytest.mark.slow
@given(steps=STEPS)
@settings(max_examples=3, suppress_health_check=list(HealthCheck), derandomize=True)
def test_a_conversation_behaves_like_a_plain_list(api: Api, script: Script, steps: list[tuple[str, int, int]]) -> None:
    play(api, script, steps)


@pytest.mark.slow
@given(steps=STEPS)
@hypothesis.seed(SEED)
@settings(max_examples=sized(6, full=200), suppress_health_check=list(HealthCheck))
def test_many_conversations_behave_like_plain_lists(
    api: Api, script: Script, steps: list[tuple[str, int, int]]
) -> None:
    play(api, script, steps)
