import asyncio

from agentrl.runtime.mail import Mailbox
from scheduler.decisions import Admit


async def test_a_listener_sleeps_on_when_another_call_took_what_it_was_woken_for() -> None:
    mailbox = Mailbox()
    first, second = (Admit(t=0.0, job="job", num_groups=n) for n in (1, 2))
    listening = asyncio.create_task(mailbox.wait())
    await asyncio.sleep(0)
    mailbox.put(first)
    assert mailbox.take().decisions == (first,)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not listening.done()
    mailbox.put(second)
    assert (await listening).decisions == (second,)
