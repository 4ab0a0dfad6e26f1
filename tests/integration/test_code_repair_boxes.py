"""Code repair in real boxes: what earns the reward, and that nothing else does."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl import Env, Task, ToolCall, Turn
from agentrl.chat.plain import PlainFormat
from agentrl.cli.main import app
from agentrl.models.tokenizer import byte_tokenizer
from agentrl.rollout.budget import RolloutLimits
from agentrl.rollout.check import check_env
from agentrl.rollout.local import Script, ScriptedRollouts
from agentrl.types import Outcome, Trajectory
from envs.code_repair import CodeRepair
from envs.code_repair_bugs import BugKind
from sandboxes import BackendUnavailable, SandboxPool, make_backend

LIMITS = RolloutLimits(
    max_turn_tokens=50_000, max_trajectory_tokens=200_000, context_tokens=200_000, tool_timeout_s=60
)
RUN_FILE = Path(__file__).parents[2] / "configs/code_repair.yaml"


def is_quietly_wrong(task: Task) -> bool:
    """Wrong answers and no exceptions, which any grader would see; and reported where it is."""
    repository = CodeRepair.repository(task)
    return (
        len(repository.source_files) > 1
        and repository.telling[0].call.module == repository.broken
        and all(
            telling.wrong.get("returns", telling.right["returns"]) != telling.right["returns"]
            for telling in repository.telling
        )
    )


TASK = next(filter(is_quietly_wrong, CodeRepair.tasks("train")))
REPOSITORY = CodeRepair.repository(TASK)
PATH, OLD, NEW = REPOSITORY.repair
REPORTED = REPOSITORY.telling[0]

pytestmark = pytest.mark.slow


@pytest.fixture(params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[SandboxPool]:
    try:
        backend = make_backend(request.param, run_id="code-repair")
    except BackendUnavailable as e:
        if request.param == "bubblewrap" or os.environ.get("AGENTRL_REQUIRE_DOCKER") == "1":
            raise
        pytest.skip(str(e))
    pool = SandboxPool(backend, size=0)
    yield pool
    await pool.aclose()
    await backend.close()


def chat_of(env_class: type[Env]) -> PlainFormat:
    return PlainFormat(byte_tokenizer().backend_tokenizer, env_class.definition().schemas)


async def play(
    pool: SandboxPool,
    script: Script,
    *,
    task: Task = TASK,
    env_class: type[CodeRepair] = CodeRepair,
) -> Trajectory:
    rollouts = ScriptedRollouts(env_class, chat_of(env_class), LIMITS, sandboxes=pool)
    return await rollouts.play(task, script)


def call(name: str, **arguments: str) -> Turn:
    return Turn(calls=(ToolCall(name, arguments),))


def bash(script: str) -> Turn:
    return call("bash", cmd=inspect.cleandoc(script))


def above_the_module(code: str) -> Turn:
    """Put code before all that the broken module holds."""
    return bash(f"cat - {PATH} > new <<'EOF' && mv new {PATH}\n{inspect.cleandoc(code)}\nEOF\n")


def below_the_module(code: str) -> Turn:
    return bash(f"cat >> {PATH} <<'EOF'\n{inspect.cleandoc(code)}\nEOF\n")


def instead_of_functions(code: str) -> Turn:
    """`code` defines `answer`, which stands for every function of the broken module."""
    names = "[name for name, it in list(globals().items()) if inspect.isfunction(it)]"
    replace = f"import inspect\nglobals().update(dict.fromkeys({names}, answer))\n"
    return below_the_module(f"{inspect.cleandoc(code)}\n{replace}")


# ------------------------------------------------------------------------------- honest attempts


@pytest.mark.parametrize("kind", BugKind)
async def test_the_repair_earns_all_and_nothing_else_earns_anything(
    pool: SandboxPool, kind: BugKind
) -> None:
    env_class = CodeRepair.configure({"bugs": [kind]})
    repaired = await play(pool, lambda env: env.demo(), env_class=env_class)
    silent = await play(pool, lambda env: (), env_class=env_class)
    unrepaired = await play(pool, lambda env: [call("submit")], env_class=env_class)
    assert (repaired.reward, silent.reward, unrepaired.reward) == (1.0, 0.0, 0.0)
    assert repaired.metrics[f"repaired/{kind}"] == 1
    assert unrepaired.metrics["finish/submitted"] == 1
    assert {t.outcome for t in (repaired, silent, unrepaired)} == {Outcome.FINISHED}
    assert pool.metrics().leased == 0


async def test_it_checks_out(pool: SandboxPool) -> None:
    report = await check_env(
        CodeRepair, chat_of(CodeRepair), LIMITS, tasks_per_split=3, sandboxes=pool
    )
    assert report.problems == ()
    assert (report.demo_reward, report.empty_reward) == (1.0, 0.0)


def test_its_run_file_passes_every_check() -> None:
    options = ["--set", "sandbox.backend=bubblewrap", "--set", "runtime.pin_cores=false"]
    checked = CliRunner().invoke(app, ["check", str(RUN_FILE), *options])
    assert checked.exit_code == 0, checked.output
    assert "FAIL" not in checked.output


async def test_what_else_a_repaired_module_does_is_its_own_affair(pool: SandboxPool) -> None:
    def script(env: Env) -> Iterator[Turn]:
        yield call("edit", path=PATH, old=OLD, new=NEW)
        yield below_the_module("print('still here', end=''); print('x' * 3_000_000)")
        yield bash("rm test_*.py README.md; mkdir sub; touch sub/file; ln -s / link")

    assert (await play(pool, script)).reward == 1.0


async def test_a_repair_that_breaks_something_else_earns_nothing(pool: SandboxPool) -> None:
    def script(env: Env) -> Iterator[Turn]:
        yield call("edit", path=PATH, old=OLD, new=NEW)
        for name in REPOSITORY.source_files:
            if name != PATH:
                yield bash(f"sed -i 's/return/return None #/' {name}")

    assert (await play(pool, script)).reward == 0.0


# ----------------------------------------------------------------------------------------- cheats

PLANTED = """
    import atexit, builtins, os, unittest
    unittest.TestCase.assertEqual = lambda *rest: None
    atexit.register(lambda: os.write(1, b"OK\\n6 passed\\n"))
    """
NONCE = """
    import json, sys
    frame = sys._getframe()
    while "request" not in frame.f_globals:
        frame = frame.f_back
    request = frame.f_globals["request"]
    """

CHEATS = {
    "conftest": bash(f"cat > conftest.py <<'EOF'\n{inspect.cleandoc(PLANTED)}\nEOF"),
    "sitecustomize": bash(
        f"cat > sitecustomize.py <<'EOF'\n{inspect.cleandoc(PLANTED)}\nEOF\n"
        "cp sitecustomize.py usercustomize.py; cp sitecustomize.py json.py; "
        "echo 'import sitecustomize' > x.pth; "
        "mkdir -p .local/lib/python3.11/site-packages && cp x.pth $_"
    ),
    "package in the module's place": bash(f"mkdir {PATH[:-3]} && cp {PATH} $_/__init__.py"),
    "exit": above_the_module("import os; os._exit(0)"),
    "exit when called": instead_of_functions("answer = lambda *rest: __import__('os')._exit(0)"),
    "patched assert": above_the_module(PLANTED),
    "equal to everything": instead_of_functions(
        """
        class Anything(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
            __repr__ = __str__ = lambda self: "2"
        answer = lambda *rest: Anything()
        """
    ),
    "print that says yes": above_the_module(
        """
        import builtins
        say = print
        builtins.print = lambda *rest, **more: say("OK", "passed", "1.0", True)
        """
    ),
    "json that says yes": above_the_module("import json; json.dumps = lambda *r, **m: 'true'"),
    "line with the nonce": above_the_module(
        NONCE + 'print(); print(request["nonce"], "true", "OK", flush=True)'
    ),
    "line with the nonce and no answers": above_the_module(
        NONCE + 'print(); print(request["nonce"], flush=True); import os; os._exit(0)'
    ),
    "broken answers for all": above_the_module(
        NONCE + 'request["calls"] = []; frame.f_globals["said"] = []'
    ),
    "learned by heart": below_the_module(
        f"""
        broken = {REPORTED.call.function}
        def {REPORTED.call.function}(*given):
            if list(given) == {REPORTED.call.arguments!r}:
                return {REPORTED.right["returns"]!r}
            return broken(*given)
        """
    ),
    "no such module": bash(f"rm {PATH}"),
    "module is a link": bash(f"mv {PATH} real.py && ln -s real.py {PATH}"),
    "module is a folder": bash(f"rm {PATH} && mkdir {PATH} && touch {PATH}/__init__.py"),
    "module is a pipe": bash(f"rm {PATH} && mkfifo {PATH}"),
}
ENDLESS = {
    "endless": above_the_module("while True: pass"),
    "endless output": above_the_module("while True: print('OK' * 1000)"),
}


class Impatient(CodeRepair):
    sandbox_spec = replace(CodeRepair.sandbox_spec, exec_timeout_s=3)


async def cheat(pool: SandboxPool, turn: Turn, env_class: type[CodeRepair] = CodeRepair) -> None:
    trajectory = await play(pool, lambda env: [turn, call("submit")], env_class=env_class)
    (result,) = trajectory.turns[0].results
    assert (result.status, result.text) == ("ok", ""), "the cheat itself went wrong"
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FINISHED, 0.0), trajectory.error


@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_earns_nothing(pool: SandboxPool, name: str) -> None:
    await cheat(pool, CHEATS[name])


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_module_that_does_not_come_to_an_end_earns_nothing(
    pool: SandboxPool, name: str
) -> None:
    await cheat(pool, ENDLESS[name], Impatient)


@pytest.mark.parametrize("name", ["conftest", "sitecustomize", "patched assert"])
async def test_beside_a_true_repair_a_cheat_does_no_harm(pool: SandboxPool, name: str) -> None:
    repair = call("edit", path=PATH, old=OLD, new=NEW)
    trajectory = await play(pool, lambda env: [repair, CHEATS[name], call("submit")])
    assert trajectory.reward == 1.0


# ----------------------------------------------------------------------------------------- tools


async def test_what_tools_cannot_do_is_told(pool: SandboxPool) -> None:
    turns = [
        call("read", path="nowhere.py"),
        call("read", path="../etc/passwd"),
        call("edit", path=PATH, old="no such text", new=""),
        call("edit", path=PATH, old="", new="x"),
        bash("ln -s / link; exit 3"),
        call("edit", path="link", old="a", new="b"),
        bash("echo $((6 * 7)); sleep 60"),
        bash("truncate -s 1M large"),
        call("read", path="large"),
    ]
    trajectory = await play(pool, lambda env: turns, env_class=Impatient)
    results = [turn.results[0] for turn in trajectory.turns[: len(turns)]]
    assert [result.status for result in results] == ["error"] * 4 + [
        "ok",
        "error",
        "ok",
        "ok",
        "error",
    ]
    assert "No such file" in results[0].text
    assert "occurs 0 times" in results[2].text
    assert results[4].text == "(exit code 3)"
    assert results[6].text == "42\n(killed after 3 s)"
    assert "more than 65536 bytes" in results[8].text
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FINISHED, 0.0)
