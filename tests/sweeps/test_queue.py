import pytest

from vitrine.sweeps.queue import Queue
from vitrine.sweeps.trial import Outcome, held, outcome


@pytest.fixture
def ended():
    return []


@pytest.fixture
def queue_of(ended):
    def make(*trials):
        queue = Queue(trials, lambda trial: None, lambda trial, came: ended.append((trial.number, came.status)))
        queue.ELSEWHERE_SECONDS = 0.0
        return queue

    return make


def test_trials_are_handed_out_in_order_and_told_of_once(make_trial, queue_of, ended):
    trials = [make_trial(number) for number in range(3)]
    queue = queue_of(*trials)
    assert [queue.ask(), queue.ask(), queue.ask(), queue.ask()] == [*trials, None]
    assert not queue.done, "they are out"
    assert ended == []
    for trial in trials:
        queue.tell(trial, Outcome("finished"))
    assert queue.done
    assert ended == [(number, "finished") for number in range(3)]


@pytest.mark.parametrize(("status", "again"), [("finished", False), ("failed", False), ("interrupted", True)])
def test_a_trial_of_another_process_is_waited_for_and_taken_up_only_if_it_is_left(
    make_trial, left, queue_of, ended, status, again
):
    trial = make_trial()
    queue = queue_of(trial)
    record = left(queue.ask(), "failed", error="before the other process took it up")
    queue.put_back(trial)
    with held(trial):
        assert (queue.ask(), queue.done, ended) == (None, False, [])
        record.end(status)
        if status == "finished":
            record.write_metrics({"val/acc": 0.5})

    assert (queue.ask() == trial) is again
    assert queue.done is not again
    assert ended == ([] if again else [(0, status)])


def test_what_a_folder_says_is_what_a_trial_has_come_to(make_trial, left):
    new, done, failed, damaged = (make_trial(number) for number in range(4))
    left(done, "finished")
    left(failed, "failed", error="out of memory")
    left(damaged, "finished").path.joinpath("run.json").write_text("{")

    assert outcome(new.folder) == Outcome("new")
    assert outcome(done.folder) == Outcome("finished", {"val/acc": 0.5, "train_seconds": 1.0}, "", 1.0)
    assert outcome(failed.folder) == Outcome("failed", error="out of memory")
    assert outcome(damaged.folder).status == "damaged"
