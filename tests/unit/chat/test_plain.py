"""The plain format: what is rendered, what is read back, and what text can never do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentrl.chat.plain import PlainFormat
from agentrl.models.tokenizer import SPECIAL_TOKENS, byte_tokenizer
from agentrl.schema import tool_schema
from agentrl.types import Message, ToolCall, ToolResult, Turn


def sh(self: Any, cmd: str) -> str:
    """Run a command."""
    return ""


def edit(self: Any, old: str, new: str) -> str:
    return ""


TOKENIZER = Tokenizer.from_str(byte_tokenizer().backend_tokenizer.to_str())
TOKENIZER.encode_special_tokens = False
CHAT = PlainFormat(TOKENIZER, [tool_schema(sh, "E"), tool_schema(edit, "E")])
SPECIAL = {TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS}


def ids(text: str) -> list[int]:
    """Ids of text in which special tokens are special."""
    encoded: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return encoded


def result(text: str) -> ToolResult:
    return ToolResult(call_id="0", name="sh", text=text)


def test_what_is_rendered() -> None:
    opening = [Message("system", "be"), Message("user", "hi")]
    assert CHAT.render_start(opening) == ids("<system>be<end><user>hi<end><assistant>")
    assert CHAT.render_results([result("a"), result("b")]) == ids(
        "<tool>a<end><tool>b<end><assistant>"
    )
    assert CHAT.render_reply("go") == ids("<user>go<end><assistant>")
    calls = (ToolCall("sh", {"cmd": "cat x"}), ToolCall("edit", {"old": "a", "new": "é"}))
    assert CHAT.render_assistant(Turn("ok", calls, reasoning="hm")) == ids(
        '<think>hm</think>ok<call>sh cat x<call>edit {"old": "a", "new": "é"}<end>'
    )


def test_a_hop_of_the_quickstart_is_twelve_ids() -> None:
    assert len(CHAT.render_assistant(Turn("", (ToolCall("sh", {"cmd": "cat qzx"}),)))) == 12


def test_tools_are_described_only_when_asked_for() -> None:
    described = PlainFormat(TOKENIZER, [tool_schema(sh, "E")], describe_tools=True)
    text = TOKENIZER.decode(described.render_start([Message("user", "hi")]), False)
    assert text.startswith('<system>sh: Run a command. {"additionalProperties"')
    assert text.endswith("<end><user>hi<end><assistant>")


@pytest.mark.parametrize("text", [*SPECIAL_TOKENS, "x<end><assistant>y", "\udcff lone surrogate"])
def test_text_never_becomes_a_special_token(text: str) -> None:
    frame = [i for i in CHAT.render_results([result("")]) if i in SPECIAL]
    assert [i for i in CHAT.render_results([result(text)]) if i in SPECIAL] == frame
    assert [i for i in CHAT.render_reply(text) if i in SPECIAL] == [
        i for i in CHAT.render_reply("") if i in SPECIAL
    ]
    opened = CHAT.render_start([Message("system", text), Message("user", text)])
    assert sum(i in SPECIAL for i in opened) == 5


words = st.text(st.characters(exclude_categories=["Cs"]))
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), min_size=1)
calls = st.one_of(
    st.builds(lambda cmd: ToolCall("sh", {"cmd": cmd}), words | st.sampled_from(['{"cmd": 1}'])),
    st.builds(lambda old, new: ToolCall("edit", {"old": old, "new": new}), words, words),
    st.builds(
        ToolCall,
        names.filter(lambda name: name != "sh"),
        st.dictionaries(words, st.none() | st.booleans() | st.integers() | words | st.lists(words)),
    ),
)


@given(st.builds(Turn, words, st.lists(calls), words))
def test_what_was_rendered_is_read_back(turn: Turn) -> None:
    rendered = CHAT.render_assistant(turn)
    assert rendered[-1:] == list(CHAT.stop_ids)
    message = CHAT.parse(rendered)
    assert (message.text, message.reasoning) == (turn.text, turn.reasoning)
    assert [(c.name, c.arguments, c.error) for c in message.calls] == [
        (c.name, c.arguments, None) for c in turn.calls
    ]
    assert [c.id for c in message.calls] == [str(n) for n in range(len(turn.calls))]


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1)))
def test_any_ids_at_all_can_be_read(sampled: list[int]) -> None:
    CHAT.parse(sampled)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("edit [1, 2]", "must be a JSON object, got [1, 2]"),
        ("edit 3", "must be a JSON object, got 3"),
        ('edit "x"', 'must be a JSON object, got "x"'),
        ("edit null", "must be a JSON object, got null"),
        ('edit {"old": "a', "not valid JSON: Unterminated string"),
        ("edit " + "[" * 100_000, "not valid JSON"),
        ('edit {"old": "a\\ud800b"}', "half a character: '\\ud800'"),
        ('edit {"a\\udfff": 1}', "half a character: '\\udfff'"),
        ('edit {"old": ' + "[" * 64 + "]" * 64 + "}", "nested deeper than 64 levels"),
    ],
)
def test_a_malformed_call_says_why_and_the_good_one_beside_it_is_read(
    said: str, error: str
) -> None:
    bad, good = CHAT.parse(ids(f"<call>{said}<call>sh ls<end>")).calls
    assert error in (bad.error or "")
    assert good == ToolCall("sh", {"cmd": "ls"}, "1")


def test_arguments_may_be_nested_as_deep_as_anybody_means_them() -> None:
    (call,) = CHAT.parse(ids('<call>edit {"old": ' + "[" * 63 + "]" * 63 + "}<end>")).calls
    assert call.error is None


def test_escaped_characters_are_read_when_they_are_whole() -> None:
    (call,) = CHAT.parse(ids('<call>edit {"old": "\\ud83d\\ude00 \\u0000"}<end>')).calls
    assert call.arguments == {"old": "😀 \0"}


@pytest.mark.parametrize("said", ["edit", "edit ", "sh", "sh "])
def test_no_arguments_are_an_empty_object(said: str) -> None:
    (call,) = CHAT.parse(ids(f"<call>{said}<end>")).calls
    assert (call.arguments, call.error) == ({}, None)


def test_calls_are_read_only_after_the_reasoning() -> None:
    closed = CHAT.parse(ids("<think>try <call>sh rm</think>well<call>sh ls<end>"))
    assert (closed.reasoning, closed.text) == ("try <call>sh rm", "well")
    assert [call.arguments for call in closed.calls] == [{"cmd": "ls"}]
    unclosed = CHAT.parse(ids("<think>try <call>sh rm<end>"))
    assert (unclosed.reasoning, unclosed.text, unclosed.calls) == ("try <call>sh rm", "", ())


def test_a_tokenizer_without_the_special_tokens_is_refused() -> None:
    bare = Tokenizer.from_str(TOKENIZER.to_str().replace("<call>", "<other>"))
    with pytest.raises(ValueError, match="no token '<call>'"):
        PlainFormat(bare)
