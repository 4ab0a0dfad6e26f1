"""agentrl's plain chat format in the terms of TRL: a chat template and a response template.

TRL never renders sampled tokens again, so what the template makes of an assistant's message only
has to satisfy the check TRL does when it starts.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from agentrl.chat.plain import PlainFormat
from agentrl.types import Message, ToolResult

ARGUMENT = "text"
"""The one parameter of every tool, as the environment for TRL names it."""

CHAT_TEMPLATE = """
{%- for message in messages -%}
  {%- if message.role == 'assistant' -%}
    <assistant>{{ message.content }}
    {%- for call in message.tool_calls or [] -%}
      <call>{{ call.function.name }} {{ call.function.arguments | tojson }}
    {%- endfor -%}
    <end>
  {%- else -%}
    <{{ message.role }}>{{ message.content }}<end>
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}
"""

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<assistant>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<call>(?P<name>[a-z_]+) ?",
            "close_pattern": r"(?=<call>|<end>)",
            "repeats": True,
            "content": "text",
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": {ARGUMENT: "{content}"}},
            },
        },
        "content": {"close_pattern": r"<end>", "content": "text"},
    },
}


def speak_plain(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same tokenizer, able to render and read conversations for TRL."""
    # a template names its special tokens in text, so here text may become one
    tokenizer.split_special_tokens = False
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
    _check_equal_to_ours(tokenizer)
    return tokenizer


def _check_equal_to_ours(tokenizer: PreTrainedTokenizerBase) -> None:
    """Both sides must show the model the same ids, or the comparison is void."""
    ours = PlainFormat(tokenizer.backend_tokenizer)
    asked = [{"role": "user", "content": "abc"}]
    answered = [
        *asked,
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "name": "sh", "content": "xyz"},
    ]
    start = _render(tokenizer, asked)
    assert start == ours.render_start([Message("user", "abc")])
    result = ToolResult(call_id="0", name="sh", text="xyz")
    assert _render(tokenizer, answered)[len(start) + 1 :] == ours.render_results([result])


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, object]]) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids
