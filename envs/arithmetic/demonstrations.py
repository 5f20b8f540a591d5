"""Sums done badly: what the tiny model is warm-started on, so that reinforcement learning does the learning."""

from __future__ import annotations

from random import Random

from rollart_hpc.envs.arithmetic.arithmetic import Arithmetic

WRONG_DIGIT_SHARE = 0.1
LOST_CARRY_SHARE = 0.7


def bad_play(rng: Random) -> list[tuple[str, str]]:
    """One episode as a pair of observation and action text: a scratchpad with slips, then its answer.

    One digit in ten is a random one, and seven carries in ten are lost.
    """
    question, _ = Arithmetic().reset(seed=rng.getrandbits(31), task={})
    left, right = (int(operand) for operand in question.removesuffix("=?").split("+"))
    carry, digit = divmod(left + right, 10)
    if rng.random() < WRONG_DIGIT_SHARE:
        digit = rng.randrange(10)
    if rng.random() < LOST_CARRY_SHARE:
        carry = 0
    scratchpad = f"<think>{left}+{right}+0={digit};carry{carry};</think>"
    return [(question, f"{scratchpad}<answer>{carry}{digit}</answer>")]
