import pytest

from vitrine.sweeps.queue import GridQueue
from vitrine.sweeps.trial import TrialResult, locked, read_result


class Listener:
    """Keeps what it is notified of."""

    def __init__(self):
        self.started, self.ended = [], []

    def trial_started(self, trial):
        self.started.append(trial.number)

    def trial_ended(self, trial, result):
        self.ended.append((trial.number, result.status))


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def queue_of(listener):
    def make(*trials):
        queue = GridQueue(trials)
        queue.subscribe(listener)
        queue.POLL_SECONDS = 0.0
        return queue

    return make


def test_trials_are_handed_out_in_order_and_reported_once(make_trial, queue_of, listener):
    trials = [make_trial(number) for number in range(3)]
    queue = queue_of(*trials)
    assert [queue.ask(), queue.ask(), queue.ask(), queue.ask()] == [*trials, None]
    assert not queue.done, "they are out"
    assert (listener.started, listener.ended) == ([], [])
    queue.started(trials[0])
    assert listener.started == [0]
    for trial in trials:
        queue.tell(trial, TrialResult("finished"))
    assert queue.done
    assert listener.ended == [(number, "finished") for number in range(3)]


@pytest.mark.parametrize(("status", "again"), [("finished", False), ("failed", False), ("interrupted", True)])
def test_a_trial_of_another_process_is_waited_for_and_taken_up_only_if_it_is_left(
    make_trial, left, queue_of, listener, status, again
):
    trial = make_trial()
    queue = queue_of(trial)
    record = left(queue.ask(), "failed", error="before the other process took it up")
    queue.put_back(trial)
    with locked(trial):
        assert (queue.ask(), queue.done, listener.ended) == (None, False, [])
        record.end(status)
        if status == "finished":
            record.write_metrics({"val/acc": 0.5})

    assert (queue.ask() == trial) is again
    assert queue.done is not again
    assert listener.ended == ([] if again else [(0, status)])


def test_a_result_is_read_from_the_trial_s_folder(make_trial, left):
    new, done, failed, damaged = (make_trial(number) for number in range(4))
    left(done, "finished")
    left(failed, "failed", error="out of memory")
    left(damaged, "finished").path.joinpath("run.json").write_text("{")

    assert read_result(new.folder) == TrialResult("new")
    assert read_result(done.folder) == TrialResult(
        "finished", {"val/acc": 0.5, "train_seconds": 1.0}, "", 1.0, fingerprint_version=1
    )
    assert read_result(failed.folder) == TrialResult("failed", error="out of memory", fingerprint_version=1)
    assert read_result(damaged.folder).status == "damaged"
