"""Engines that cannot start, that fail and that are closed while they work."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from rollart_hpc.data_plane.backends.vllm import thread_engine
from rollart_hpc.data_plane.backends.vllm.thread_engine import VllmThreadEngine
from rollart_hpc.errors import EngineError, WaitTimeout

pytestmark = pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning")  # vLLM, at import


@pytest.mark.parametrize("kind", ["core", "public", pytest.param("async", marks=pytest.mark.slow)])
async def test_a_failure_answers_every_request_with_an_error_and_is_reported_once(kind, start_inbox):
    inbox = await start_inbox(kind)
    futures = inbox.send(*(inbox.request([1, 2, number], 400) for number in range(8)))
    await inbox.ask([1], 10)
    break_engine(inbox.engine)
    results = await asyncio.wait_for(asyncio.gather(*futures), 30)
    assert all("the engine failed" in result.error for result in results)
    assert len(inbox.failures) == 1
    assert inbox.engine.num_running == 0
    assert "the engine failed" in (await inbox.ask([1], 4)).error
    inbox.engine.abort("inbox", [1])
    with pytest.raises(EngineError, match="failed"):
        await inbox.engine.suspend()
    await inbox.engine.close()


@pytest.mark.slow
async def test_signals_that_are_meant_for_the_worker_do_not_end_the_engine_s_own_process(start_inbox):
    inbox = await start_inbox("async")
    (process,) = inbox.engine._llm.engine_core.resources.engine_manager.processes
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        os.kill(process.pid, number)
    result = await asyncio.wait_for(inbox.ask([1, 2], 4), 60)
    assert result.error == ""
    assert process.is_alive()
    await inbox.engine.close()
    await asyncio.to_thread(process.join, 30)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
async def test_closing_answers_what_is_outstanding_and_ends_the_thread(suspended, start_inbox):
    inbox = await start_inbox("core")
    if suspended:
        await inbox.engine.suspend()
    (future,) = inbox.send(inbox.request([1, 2], 400))
    await inbox.engine.close()
    assert "closed" in (await future).error
    assert "closed" in (await inbox.ask([1], 4)).error
    assert inbox.failures == []
    await inbox.engine.close()


async def test_a_step_that_hangs_is_told_at_the_deadline(start_inbox, monkeypatch):
    monkeypatch.setattr(VllmThreadEngine._wait, "__defaults__", (0.2,))
    monkeypatch.setattr(thread_engine, "_CLOSE_DEADLINE_S", 0.2)
    inbox = await start_inbox("core")
    go_on = threading.Event()
    hung = inbox.engine._commands.call(go_on.wait)
    with pytest.raises(WaitTimeout, match=r"waited 0\.2 s for the running step to end from the vLLM thread"):
        await inbox.engine.suspend()
    with pytest.raises(WaitTimeout, match=r"waited 0\.2 s for the end of its last step from the vLLM thread"):
        await inbox.engine.close()
    go_on.set()
    await asyncio.wait_for(asyncio.wrap_future(hung), 30)
    await asyncio.to_thread(inbox.engine._thread.join, 30)
    assert not inbox.engine._thread.is_alive()


async def test_a_model_that_the_kernels_refuse_fails_at_the_start(tmp_path, policies):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    narrow = Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2, head_dim=16)  # fmt: skip
    Qwen3ForCausalLM(narrow).save_pretrained(tmp_path)
    config = policies.config()
    engine = VllmThreadEngine(
        config.model_copy(update={"model": config.model.model_copy(update={"path": tmp_path})}), seed=0
    )
    with pytest.raises(EngineError, match="cannot serve"):
        await engine.start(lambda _: None, lambda _: None)
    await engine.close()


async def test_an_engine_that_was_not_started_says_so(policies):
    engine = VllmThreadEngine(policies.config(), seed=0)
    with pytest.raises(EngineError, match="not started"):
        await engine.suspend()
    await engine.close()


def break_engine(engine):
    """Lets the next step raise, or ends the process that steps run in."""
    if hasattr(engine, "_llm"):
        (process,) = engine._llm.engine_core.resources.engine_manager.processes
        process.kill()
    else:

        def broken_step():
            raise RuntimeError("out of memory")

        engine._commands._stepper.step = broken_step
