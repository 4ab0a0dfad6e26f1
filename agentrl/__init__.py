"""An agentic-RL runtime. Everything an environment needs is importable from here.

Importing this package loads neither torch nor ray.
"""

from agentrl.env import Env, ToolError, reward, seed_of, tool
from agentrl.judging import Contest, Criterion, JudgeError, Question, QuestionKind, Verdict
from agentrl.types import Message, RewardPart, Task, ToolCall, ToolResult, Turn
from sandboxes.sandbox import ExecResult, Sandbox, SandboxError, UnsafePath
from sandboxes.spec import SandboxSpec

__all__ = [
    "Contest",
    "Criterion",
    "Env",
    "ExecResult",
    "JudgeError",
    "Message",
    "Question",
    "QuestionKind",
    "RewardPart",
    "Sandbox",
    "SandboxError",
    "SandboxSpec",
    "Task",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "Turn",
    "UnsafePath",
    "Verdict",
    "reward",
    "seed_of",
    "tool",
]
