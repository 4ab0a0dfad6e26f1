"""An agentic-RL runtime. Everything an environment needs is importable from here.

Importing this package loads neither torch nor ray.
"""

from agentrl.env import Env, ToolError, reward, seed_of, tool
from agentrl.types import Message, Task, ToolCall, ToolResult, Turn
from sandboxes.sandbox import ExecResult, Sandbox, SandboxError, UnsafePath
from sandboxes.spec import SandboxSpec

__all__ = [
    "Env",
    "ExecResult",
    "Message",
    "Sandbox",
    "SandboxError",
    "SandboxSpec",
    "Task",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Turn",
    "UnsafePath",
    "reward",
    "seed_of",
    "tool",
]
