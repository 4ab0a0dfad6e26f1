"""What `agentrl train` prints: a live bar and a line a step on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentrl.runtime.display import Display, EvalProgress, StepProgress, Summary, WarmupProgress

_WARMUP_LINES = 8
"""How often the warm-up prints its loss where there is no bar."""


class PlainDisplay:
    """One line a thing that happened; for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def phase(self, text: str) -> None:
        self.print(text)

    def warmup(self, progress: WarmupProgress) -> None:
        every = max(1, progress.num_steps // _WARMUP_LINES)
        if progress.step % every == 0 or progress.step == progress.num_steps:
            self.print(
                f"{progress.of} warm-up {progress.step}/{progress.num_steps}  "
                f"loss {progress.loss:.3f}"
            )

    def step(self, progress: StepProgress) -> None:
        self.print(step_line(progress))

    def evaluated(self, progress: EvalProgress) -> None:
        self.print(eval_line(progress))

    def note(self, text: str) -> None:
        self.print(text)

    def warn(self, text: str) -> None:
        self.print(f"warning: {text}")

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay(PlainDisplay):
    """The same lines above a bar that shows how far the run is."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task("starting", total=None)

    def __enter__(self) -> LiveDisplay:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def phase(self, text: str) -> None:
        self._progress.reset(self._bar, description=text, total=None)
        super().phase(text)

    def warmup(self, progress: WarmupProgress) -> None:
        self._progress.update(
            self._bar,
            description=f"{progress.of} warm-up, loss {progress.loss:.3f}",
            completed=progress.step,
            total=progress.num_steps,
        )

    def step(self, progress: StepProgress) -> None:
        self._progress.update(
            self._bar,
            description="training",
            completed=progress.step,
            total=progress.num_steps,
        )
        super().step(progress)


def make_display(console: Console) -> PlainDisplay:
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def step_line(progress: StepProgress) -> str:
    reward = "   -  " if progress.reward is None else f"{progress.reward:6.3f}"
    return (
        f"step {progress.step:>4}/{progress.num_steps}  reward {reward}  "
        f"{progress.trajectories_per_s:6.1f} traj/s  {progress.tokens_per_s:7.0f} tok/s  "
        f"{progress.seconds:5.1f} s  {outcomes_text(progress.outcomes)}{swap_text(progress)}"
    )


def swap_text(progress: StepProgress) -> str:
    """What new weights cost the turns that ran, where that is worth a word."""
    is_seen = progress.stalled_turn_s >= 0.1
    return f", new weights held turns up for {progress.stalled_turn_s:.1f} s" if is_seen else ""


def eval_line(progress: EvalProgress) -> str:
    reward = "-" if progress.reward is None else f"{progress.reward:.3f}"
    return f"eval after step {progress.step}: reward {reward} on {progress.tasks} tasks"


def outcomes_text(outcomes: Mapping[str, int]) -> str:
    """Everything that did not simply finish, by kind; nothing hides in a total."""
    parts = [f"{count} {kind}" for kind, count in sorted(outcomes.items()) if count]
    return ", ".join(parts) or "no attempt ended"


def summary_lines(summary: Summary) -> list[str]:
    before, after = summary.eval_reward_before, summary.eval_reward
    change = " -> ".join("-" if reward is None else f"{reward:.3f}" for reward in (before, after))
    lines = [
        f"eval reward {change} in {summary.steps} steps, {summary.wall_s:.0f} s, "
        f"{summary.trajectories} trajectories ({outcomes_text(summary.outcomes)})"
    ]
    lines += [f"  {name}: {value:.3f}" for name, value in sorted(summary.eval_metrics.items())]
    lines += [f"run: {summary.run}", f"look:  agentrl inspect show {summary.run}"]
    return lines


_: type[Display] = PlainDisplay
