import numpy as np
import pytest

from rollart_hpc.config.schema import AlgorithmSection
from rollart_hpc.control_plane.batch import form_batch
from rollart_hpc.control_plane.group import Group
from rollart_hpc.types import Span, Ticket
from tests.builders import trajectory


def group(group_id: str, rewards: list[float], task: str = "a", **changes: object) -> Group:
    made = Group(group_id=group_id, task=task, index=0, seed=0, size=len(rewards), opened_version=0)
    for number, reward in enumerate(rewards):
        ticket = Ticket(trajectory_id=f"{group_id}.{number}", group_id=group_id, task=task, seed=0, admitted_version=0)
        made.finished.append(trajectory(ticket, reward=reward, **changes))
    return made


def test_the_batch_carries_advantages_and_weights_on_sampled_tokens_only():
    batch = form_batch([group("g", [0.0, 1.0])], step=0, algorithm=AlgorithmSection(), data_parallel=1)
    (share,) = batch.shares
    assert share.lengths.tolist() == [4, 4]
    assert share.loss_weights.tolist() == pytest.approx([0, 0, 0.25, 0.25] * 2)
    assert np.sign(share.advantages).tolist() == [0, 0, -1, -1, 0, 0, 1, 1]
    assert share.sampler_logprobs.tolist() == [0, 0, -0.5, -0.25] * 2


def test_a_group_without_variance_is_left_out_but_counted_in_the_denominator():
    groups = [group("g", [0.0, 1.0]), group("h", [1.0, 1.0])]
    batch = form_batch(groups, step=0, algorithm=AlgorithmSection(), data_parallel=1)
    assert batch.num_groups_without_variance == 1
    assert batch.num_trajectories == 4
    assert batch.shares[0].lengths.tolist() == [4, 4]
    assert batch.shares[0].loss_weights.max() == pytest.approx(1 / 8)


def test_each_task_has_its_own_denominator_unless_told_otherwise():
    groups = [group("g", [0.0, 1.0]), group("h", [0.0, 1.0], task="b"), group("i", [0.0, 1.0], task="b")]
    by_task = form_batch(groups, step=0, algorithm=AlgorithmSection(), data_parallel=1).shares[0]
    assert sorted(set(by_task.loss_weights.tolist())) == pytest.approx([0, 1 / 8, 1 / 4])
    overall = form_batch(groups, step=0, algorithm=AlgorithmSection(denominator="global"), data_parallel=1).shares[0]
    assert sorted(set(overall.loss_weights.tolist())) == pytest.approx([0, 1 / 12])


def test_shares_are_whole_sequences_and_together_the_batch():
    groups = [group(f"g{number}", [0.0, 1.0]) for number in range(3)]
    whole = form_batch(groups, step=0, algorithm=AlgorithmSection(), data_parallel=1).shares[0]
    shares = form_batch(groups, step=0, algorithm=AlgorithmSection(), data_parallel=4).shares
    assert sorted(len(share.lengths) for share in shares) == [1, 1, 2, 2]
    assert sum(share.loss_weights.sum() for share in shares) == pytest.approx(float(whole.loss_weights.sum()))
    assert sum(len(share.token_ids) for share in shares) == len(whole.token_ids)


def test_an_empty_response_trains_nothing_and_shifts_no_reward():
    empty = group("g", [0.0, 1.0])
    empty.finished[1] = trajectory(
        Ticket(trajectory_id="e", group_id="g", task="a", seed=0, admitted_version=0),
        reward=1.0,
        loss_mask=np.zeros(4, np.uint8),
    )
    (share,) = form_batch([empty], step=0, algorithm=AlgorithmSection(), data_parallel=1).shares
    assert share.lengths.tolist() == [4]
    assert share.advantages[2] < 0


def test_a_batch_without_any_variance_is_an_empty_share():
    (share,) = form_batch([group("g", [1.0, 1.0])], step=0, algorithm=AlgorithmSection(), data_parallel=1).shares
    assert len(share.lengths) == len(share.token_ids) == 0


def test_staleness_and_same_version_tokens_go_by_the_spans():
    mixed = group("g", [0.0, 1.0], spans=(Span(3, 2, 3), Span(4, 3, 4)), start_version=3)
    batch = form_batch([mixed], step=4, algorithm=AlgorithmSection(), data_parallel=1)
    assert batch.max_staleness == 1
    assert batch.shares[0].same_version.tolist() == [0, 0, 0, 1] * 2
