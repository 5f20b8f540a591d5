"""A trajectory as it grows, and the log that it makes of itself."""

import numpy as np
import pytest

from rollart_hpc.bus import codec
from rollart_hpc.control_plane.env_manager import turn_seed
from rollart_hpc.control_plane.transcript import Transcript
from rollart_hpc.types import FinishReason, GenerateResult, Span, Ticket, Turn, TurnLog

TICKET = Ticket(trajectory_id="t", group_id="g", task="a", seed=7, admitted_version=2)
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def tokens(*token_ids: int) -> bytes:
    return np.asarray(token_ids, np.int32).tobytes()


def sampled(*token_ids: int, version: int, reason: FinishReason = STOP) -> GenerateResult:
    logprobs = (-np.asarray(token_ids, np.float32) / 8).tobytes()
    spans = (Span(version, 0, len(token_ids)),) if token_ids else ()
    return GenerateResult(1, tokens(*token_ids), logprobs, spans, reason, 2)


def first_turn(transcript: Transcript) -> None:
    transcript.begin("look", tokens(1, 2))
    transcript.act("left", sampled(3, 4, version=5), "H20")
    transcript.answer(0.5, "ahead", tokens(6))


def second_action(transcript: Transcript) -> None:
    transcript.act("up", sampled(7, version=5, reason=LENGTH), "H800")


def second_answer(transcript: Transcript) -> None:
    transcript.answer(0.1, "the end", b"")


def third_turn(transcript: Transcript) -> None:
    transcript.answer(0.1, "on", tokens(8, 9))
    transcript.act("", sampled(version=6), "H20")


EVENTS = {
    "observed": [first_turn],
    "acted": [first_turn, second_action],
    "ended": [first_turn, second_action, second_answer],
    "acted without a token": [first_turn, second_action, third_turn],
}


def made_of(*events: object) -> Transcript:
    transcript = Transcript()
    for event in events:
        event(transcript)  # type: ignore[operator]
    return transcript


def travelled(log: TurnLog) -> TurnLog:
    return codec.decode(codec.encode(log), TurnLog)


def test_a_log_says_all_that_was_played():
    log = made_of(first_turn, second_action).to_log(TICKET, {"generate": 1.5})
    assert log == TurnLog(
        trajectory_id="t",
        group_id="g",
        task="a",
        seed=7,
        turns=(Turn(observation="look", action="left", reward=0.5, finish_reason=STOP),),
        observation="ahead",
        action="up",
        finish_reason=LENGTH,
        token_ids=tokens(1, 2, 3, 4, 6, 7),
        loss_mask=bytes([0, 0, 1, 1, 0, 1]),
        logprobs=np.array([0, 0, -3 / 8, -0.5, 0, -7 / 8], np.float32).tobytes(),
        spans=(Span(5, 2, 6),),
        num_cached_tokens=4,
        num_prompt_tokens=7,
        tokens_by_hardware={"H20": 2, "H800": 1},
        seconds={"generate": 1.5},
    )


@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS)
def test_a_transcript_made_of_its_log_goes_on_like_the_first(events: list[object]):
    first = made_of(*events)
    second = Transcript.from_log(travelled(first.to_log(TICKET, {})))
    for transcript in (first, second):
        if transcript.action is not None:
            transcript.answer(0.25, "more", tokens(10))
        transcript.act("right", sampled(11, 12, version=6), "H800")
    assert second.to_log(TICKET, {}) == first.to_log(TICKET, {})
    for ours, theirs in zip(first.arrays(), second.arrays(), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert second.num_sampled == first.num_sampled > len(EVENTS["observed"])


def test_a_log_does_not_change_with_the_trajectory_that_goes_on():
    transcript = made_of(first_turn)
    log = transcript.to_log(TICKET, {})
    before = codec.encode(log)
    second_action(transcript)
    assert codec.encode(log) == before


def test_only_an_action_can_be_answered():
    with pytest.raises(RuntimeError, match="no action"):
        made_of(first_turn).answer(0.0, "what", b"")


def test_every_turn_of_every_trajectory_has_a_seed_of_its_own_that_stays():
    seeds = [turn_seed(run, f"a-1-{place}", turn) for run in range(3) for place in range(40) for turn in range(40)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert turn_seed(0, "a-1-0", 2) == 1710533851219280086
