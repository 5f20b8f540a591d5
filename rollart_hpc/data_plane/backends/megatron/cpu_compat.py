"""Makes megatron-core 0.16 run on the CPU: the one place where third-party names are replaced for that.

megatron-core addresses CUDA directly: it creates tensors on ``"cuda"``, asks for the current device and
synchronises streams. Where CUDA is absent these names are pointed to the CPU. The replacement is global
for the process, so `install` is called by the trainer only, never beside another user of torch.cuda; it
does nothing where CUDA is present and refuses a megatron-core whose internals it was not checked against.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, cast

import torch

from rollart_hpc.errors import ConfigError

_CHECKED_SERIES = "0.16."
_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "empty_like", "zeros_like")
_installed = False


def install() -> None:
    """Points megatron-core's CUDA calls to the CPU, once; nothing happens where CUDA is present.

    Raises:
        ConfigError: the installed megatron-core is of another series than the one this was written for.
    """
    global _installed  # noqa: PLW0603
    if _installed or torch.cuda.is_available():
        return
    import megatron.core

    version = str(megatron.core.__version__)
    if not version.startswith(_CHECKED_SERIES):
        raise ConfigError(
            f"megatron-core {version} is installed and there is no CUDA device; training on the CPU was checked with "
            f"{_CHECKED_SERIES}x only: install megatron-core 0.16.1"
        )
    _redirect_tensor_creation()
    _redirect_tensor_types()
    _redirect_streams()
    _redirect_random_state()
    _keep_adam_step_when_loading()
    _installed = True


def _redirect_tensor_creation() -> None:
    cpu = torch.device("cpu")
    cuda = cast(Any, torch.cuda)
    cuda.current_device = lambda: cpu
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))

    def stay(tensor: Any, *_args: Any, **_kwargs: Any) -> Any:
        return tensor

    cast(Any, torch.Tensor).cuda = stay


def _on_cpu(factory: Any) -> Any:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = torch.device("cpu")
        return factory(*args, **kwargs)

    return create


def _redirect_tensor_types() -> None:
    """The optimizer sorts parameters by the name of their type, and knows the CUDA names only."""
    original = torch.Tensor.type
    known = {"torch.FloatTensor", "torch.HalfTensor", "torch.BFloat16Tensor"}

    def type_as_on_cuda(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tensor, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if isinstance(result, str) and result in known else result

    cast(Any, torch.Tensor).type = type_as_on_cuda


class _Stream:
    """Work on the CPU is in order: there is never anything to wait for."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def wait_stream(self, *_args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _redirect_streams() -> None:
    def nothing(*_args: Any) -> None:
        pass

    def in_order(_stream: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    cuda = cast(Any, torch.cuda)
    cuda.synchronize = cuda.empty_cache = nothing
    cuda.stream = in_order
    cuda.Stream = cuda.current_stream = cuda.default_stream = _Stream


def _redirect_random_state() -> None:
    """The CPU's generator plays the part of the device's."""
    from megatron.core.tensor_parallel import random as megatron_random

    def read(*_args: Any, **_kwargs: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def write(state: torch.Tensor, *_args: Any, **_kwargs: Any) -> None:
        torch.set_rng_state(state)

    cuda = cast(Any, torch.cuda)
    cuda.get_rng_state, cuda.set_rng_state, cuda.manual_seed = read, write, torch.manual_seed
    cast(Any, megatron_random)._get_cuda_rng_state = read
    cast(Any, megatron_random)._set_cuda_rng_state = write


def _keep_adam_step_when_loading() -> None:
    """torch's Adam keeps its step among the tensors of a parameter; the checkpoint keeps it by itself."""
    from megatron.core.optimizer import distrib_optimizer

    optimizer_class = cast(Any, distrib_optimizer.DistributedOptimizer)
    original = optimizer_class._set_main_param_and_optimizer_states

    def set_states(self: Any, model_param: Any, tensors: dict[str, Any]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        original(self, model_param, {"step": state["step"], **tensors} if "step" in state else tensors)

    optimizer_class._set_main_param_and_optimizer_states = set_states
