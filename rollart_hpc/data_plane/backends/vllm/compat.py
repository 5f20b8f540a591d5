"""Everything that depends on vLLM's version or on its environment variables.

vLLM reads its environment when it is imported and caches it when an engine starts, so `prepare` runs before
either. Written against vllm 0.32.
"""

from __future__ import annotations

import os
from typing import Any

from rollart_hpc import garbage
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.data_plane.backends.vllm.steppers import EngineCoreStepper, LLMEngineStepper, Stepper

_DIRECT_VERSIONS = ("0.32.",)
"""Versions whose EngineCore `EngineCoreStepper` was tested with; others are driven by the public LLMEngine."""

_ENVIRONMENT = {
    # One engine shares its cores with other processes; two OpenMP threads that wait for each other on busy cores
    # are twenty times slower than one.
    "OMP_NUM_THREADS": "1",
    # Compute nodes have no internet.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Its warnings on the CPU, some of them at every update, mean nothing here.
    "VLLM_LOGGING_LEVEL": "ERROR",
    # LLMEngine runs in this process; otherwise the CPU platform also moves its executor into a third process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_CPU_ENVIRONMENT = {
    # Two engines on one machine would bind themselves to the same core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Compiling takes 10 to 24 s at the first step and gains nothing on small models.
    "TORCHDYNAMO_DISABLE": "1",
}
_CPU_KV_CACHE_MB = 256
_WORKER_EXTENSION = "rollart_hpc.data_plane.backends.vllm.worker_extension.WeightReplacer"


def has_gpu() -> bool:
    """Whether this process sees a GPU."""
    _set_defaults(_ENVIRONMENT)
    import torch

    return torch.cuda.is_available()


def prepare() -> None:
    """Sets what vLLM is to be imported with, for the process and the calling thread; what the user set stays."""
    if has_gpu():
        return
    _set_defaults(_CPU_ENVIRONMENT)
    import torch

    # The variable comes too late for a process that imported torch before. Not `torch.set_num_threads`: vLLM
    # replaces it by a function that does nothing.
    torch._C.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # pyright: ignore[reportPrivateUsage]


def engine_arguments(config: RunConfig, *, seed: int) -> dict[str, Any]:
    """Keyword arguments of vLLM's EngineArgs for this run."""
    generation, on_gpu = config.generation, has_gpu()
    kv_cache_mb = generation.kv_cache_mb or (None if on_gpu else _CPU_KV_CACHE_MB)
    return {
        "model": str(config.model.path),
        "dtype": config.model.dtype,
        "max_model_len": config.model.max_context,
        # What shares a batch, or was computed in another batch before, changes the last bits of the logits.
        "max_num_seqs": 1 if generation.deterministic else generation.max_concurrent,
        "enable_prefix_caching": False if generation.deterministic else None,
        "kv_cache_memory_bytes": None if kv_cache_mb is None else kv_cache_mb << 20,
        "block_size": generation.block_size,
        "tensor_parallel_size": generation.tensor_parallel,
        "seed": seed,
        "enforce_eager": not on_gpu,
        # Token in, token out; no stop token and no sampling default comes from the model's files.
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        # Logprobs of the distribution that was sampled from, temperature and top-p included.
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": _WORKER_EXTENSION,
        "use_tqdm_on_load": False,
    }


def request_errors() -> tuple[type[Exception], ...]:
    """What vLLM raises for a bad request, as opposed to a lost engine."""
    from vllm import exceptions

    return (ValueError, getattr(exceptions, "VLLMClientError", ValueError))


def open_stepper(config: RunConfig, *, seed: int, public_api: bool = False) -> Stepper:
    """An engine in this process, to be stepped by the calling thread.

    Args:
        config: the run's configuration.
        seed: of the sampler.
        public_api: drive LLMEngine even where EngineCore can be driven directly.
    """
    prepare()
    import vllm
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    garbage.keep()
    arguments = engine_arguments(config, seed=seed)
    # A step then returns the tokens that it sampled, so that one version label serves the whole step.
    engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments, async_scheduling=False, disable_log_stats=True))
    core: Any = getattr(engine.engine_core, "engine_core", None)
    is_direct = vllm.__version__.startswith(_DIRECT_VERSIONS) and core is not None and core.batch_queue is None
    by_file = config.generation.tensor_parallel > 1
    if is_direct and not public_api:
        return EngineCoreStepper(engine, weights_by_file=by_file)
    return LLMEngineStepper(engine, weights_by_file=by_file)


def open_async_llm(config: RunConfig, *, seed: int) -> Any:
    """An AsyncLLM, whose engine runs in a process of its own."""
    prepare()
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = engine_arguments(config, seed=seed)
    return AsyncLLM.from_engine_args(
        # The statistics carry the time of a request's first token.
        AsyncEngineArgs(**arguments, enable_log_requests=False, disable_log_stats=False)
    )


def _set_defaults(environment: dict[str, str]) -> None:
    for name, value in environment.items():
        os.environ.setdefault(name, value)
