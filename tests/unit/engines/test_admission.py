import numpy as np
import pytest

from rollart_hpc.data_plane.backends.admission import AdmittedRequest, ModelLimits, admit
from rollart_hpc.data_plane.backends.outstanding import Outstanding
from rollart_hpc.data_plane.backends.vllm.running import RunningRequest
from rollart_hpc.data_plane.backends.vllm.steppers import StepOutput
from rollart_hpc.errors import EngineError
from rollart_hpc.types import FinishReason, GenerateRequest, GenerateResult, Span

LIMITS = ModelLimits(max_context=8, vocab_size=10)


def request_of(token_ids, max_tokens=4, request_id=1, **fields):
    return GenerateRequest(request_id, np.asarray(token_ids, "<i4").tobytes(), max_tokens, **fields)


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 4), (4, 4), (5, 3), (7, 1)], ids=["short", "just fits", "cut", "one token left"]
)
def test_max_tokens_is_cut_to_the_context(length, expected):
    assert admit(request_of([1] * length), LIMITS) == AdmittedRequest([1] * length, expected)


@pytest.mark.parametrize("length", [8, 9])
def test_a_prompt_without_room_is_an_outcome_and_no_error(length):
    assert admit(request_of([1] * length), LIMITS) == GenerateResult(1, b"", b"", (), FinishReason.CONTEXT)


@pytest.mark.parametrize("token_id", [-1, 10])
def test_ids_outside_the_vocabulary_are_refused_with_the_range(token_id):
    refused = admit(request_of([1, token_id]), LIMITS)
    assert isinstance(refused, GenerateResult)
    assert "expected 0 to 9" in refused.error


def test_outstanding_requests_are_answered_once_and_unknown_answers_dropped():
    delivered = []
    outstanding = Outstanding()
    outstanding.open(delivered.extend, lambda _: None)
    assert outstanding.accept("inbox", [request_of([1]), request_of([1])]) == [request_of([1])]
    answer = ("inbox", GenerateResult(1, b"", b"", (), FinishReason.STOP))
    outstanding.settle([answer, answer, ("other", answer[1])])
    assert delivered == [answer]
    assert len(outstanding) == 0


def test_a_deliverer_that_raises_is_a_failure_that_answers_the_rest():
    delivered, failures = [], []

    def deliver(answers):
        if not delivered:
            delivered.append("first")
            raise OSError("the bus is gone")
        delivered.extend(answers)

    outstanding = Outstanding()
    outstanding.open(deliver, failures.append)
    outstanding.accept("inbox", [request_of([1], request_id=1), request_of([1], request_id=2)])
    outstanding.settle([("inbox", GenerateResult(1, b"", b"", (), FinishReason.STOP))])
    assert [str(error) for error in failures] == ["the bus is gone"]
    assert "the bus is gone" in delivered[1][1].error
    with pytest.raises(EngineError, match="the bus is gone"):
        outstanding.require_open()


def test_spans_cover_the_response_and_leave_out_versions_that_sampled_nothing():
    running = RunningRequest("inbox", request_of([1]), 1)
    running.cut(3)
    running.extend(StepOutput("0", [5, 6], [-1.0, -2.0], None, 0, None), 0.1)
    running.cut(4)
    running.cut(5)
    running.extend(StepOutput("0", [7], [-3.0], "stop", None, None), 0.1)
    result = running.result(6, FinishReason.STOP)
    assert result.spans == (Span(4, 0, 2), Span(6, 2, 3))
    assert np.frombuffer(result.token_ids, "<i4").tolist() == [5, 6, 7]
    assert np.frombuffer(result.logprobs, "<f4").tolist() == [-1, -2, -3]
