"""What generation and training take on a class of hardware: a roofline model (paper section 3.1, table 2).

Prefill and training are bound by compute, 2 and 6 floating-point operations for each parameter and token. A decode step
reads the weights once and the KV of every context, and takes at least the time in which its tokens are computed.
Attention's own operations, the network between the devices of one engine and the cost of launching kernels are left
out; the efficiencies stand for them.

How this compares with the paper's measurements on 2 H800 and 6 H20 (section 3.1, figure 4), for Qwen3-8B on engines of
one device, prefixes cached, both classes at the same efficiencies (compute 0.5, bandwidth 0.8):

- 20 turns that read 1,000 tokens and answer 10: the H800 take 0.53 of the H20's time, as FrozenLake's measured 0.53.
  Prefill alone would take 0.45, the ratio of their compute; with answers of 50 tokens it is 0.8 to 0.9.
- 3 turns of 4,000 tokens: the H20 take 0.66, 0.57 and 0.48 of the H800's time at 16, 32 and 64 trajectories;
  GEM-Math measured 0.49 to 0.79. Few requests are bound by the weights that each engine reads, many by their KV.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollart_hpc.errors import ConfigError
from rollart_hpc.resource_plane.figures import ServedModel
from rollart_hpc.resource_plane.hardware import HardwareClass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCost:
    """One engine: a model on some devices of one class, which share its weights and its KV evenly.

    Raises:
        ConfigError: the class lacks a figure, or the weights do not fit.
    """

    model: ServedModel
    hardware: HardwareClass
    devices: int
    compute_efficiency: float
    """Share of the devices' peak compute that is reached."""
    bandwidth_efficiency: float
    """Share of their peak memory bandwidth."""

    def __post_init__(self) -> None:
        self.decode_step_s(1, 0)
        if self.kv_tokens < 1:
            raise ConfigError(
                f"the weights take {self.model.weight_bytes / 1e9:.0f} GB and {self.devices} {self.hardware.name} have "
                f"{self._memory_bytes / 1e9:.0f} GB; expected room for KV beside them: give the engine more devices"
            )

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV fits beside the weights."""
        return int((self._memory_bytes - self.model.weight_bytes) / self.model.kv_bytes_per_token)

    def prefill_s(self, num_tokens: float) -> float:
        """Seconds to compute the KV of so many tokens."""
        return 2 * self.model.parameters * num_tokens / self._flop_s

    def decode_step_s(self, num_requests: int, num_context_tokens: float) -> float:
        """Seconds of one step, one token for each of ``num_requests``, over contexts of so many tokens together."""
        return max(self.prefill_s(num_requests), self._read_s(num_context_tokens))

    def decode_s(self, num_requests: int, num_context_tokens: float, num_steps: float) -> float:
        """Seconds of so many steps in a row; each makes every context longer by its token."""
        flat_s, first_s, growth_s = self._pace(num_requests, num_context_tokens)
        flat_steps = min(num_steps, max(0.0, (flat_s - first_s) / growth_s))
        steps = num_steps - flat_steps
        return flat_steps * flat_s + steps * (first_s + growth_s * (flat_steps + steps / 2))

    def decoded_steps(self, num_requests: int, num_context_tokens: float, seconds: float) -> float:
        """Steps that are done after so many seconds, the reverse of `decode_s`; the last one may be under way."""
        flat_s, first_s, growth_s = self._pace(num_requests, num_context_tokens)
        flat_steps = max(0.0, (flat_s - first_s) / growth_s)
        if seconds <= flat_steps * flat_s:
            return seconds / flat_s
        left_s, next_s = seconds - flat_steps * flat_s, first_s + growth_s * flat_steps
        return flat_steps + 2 * left_s / (next_s + math.sqrt(next_s * next_s + 2 * growth_s * left_s))

    def _pace(self, num_requests: int, num_context_tokens: float) -> tuple[float, float, float]:
        """Of a step, by its compute; of the first step, by its reading; what every step reads longer than the last."""
        growth_s = self.model.kv_bytes_per_token * num_requests / self._bytes_s
        return self.prefill_s(num_requests), self._read_s(num_context_tokens), growth_s

    def _read_s(self, num_context_tokens: float) -> float:
        read_bytes = self.model.weight_bytes + self.model.kv_bytes_per_token * num_context_tokens
        return read_bytes / self._bytes_s

    @property
    def _memory_bytes(self) -> float:
        return self.devices * _figure(self.hardware, "memory_gb") * 1e9

    @property
    def _flop_s(self) -> float:
        return self.devices * _figure(self.hardware, "tflops") * 1e12 * self.compute_efficiency

    @property
    def _bytes_s(self) -> float:
        return self.devices * _figure(self.hardware, "memory_gb_s") * 1e9 * self.bandwidth_efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCost:
    """One optimizer step on some devices of one class.

    Raises:
        ConfigError: the class lacks a figure.
    """

    model: ServedModel
    hardware: HardwareClass
    devices: int
    compute_efficiency: float
    """Share of the devices' peak compute that is reached."""
    overhead_s: float = 0.0
    """What a step takes beside its tokens."""

    def __post_init__(self) -> None:
        self.step_s(0)

    def step_s(self, num_tokens: float) -> float:
        """Seconds of forward, backward and update over so many tokens."""
        flop_s = self.devices * _figure(self.hardware, "tflops") * 1e12 * self.compute_efficiency
        return self.overhead_s + 6 * self.model.parameters * num_tokens / flop_s


def transfer_s(num_bytes: float, gb_s: float) -> float:
    """Seconds that bytes take over a link of so many GB/s."""
    return num_bytes / (gb_s * 1e9)


def _figure(hardware: HardwareClass, key: str) -> float:
    value = getattr(hardware, key)
    if value is None:
        raise ConfigError(f"hardware class {hardware.name} has no {key}; give it in [hardware.{hardware.name}]")
    return value
