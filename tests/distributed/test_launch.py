"""Which rank a process is, by the environment variables of torchrun and Slurm."""

from dataclasses import replace

import pytest
from helpers.running import SMALL
from torch.distributed import HashStore

from vitrine import compose
from vitrine.distributed import rendezvous
from vitrine.distributed.hardware import choose_hardware
from vitrine.distributed.launch import Launch, launched
from vitrine.distributed.rendezvous import Ranks
from vitrine.errors import ConfigError, RunError
from vitrine.training.load_data import check_agreement


def set_ranks(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_as_many_devices_as_ranks(monkeypatch):
    set_ranks(monkeypatch, RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4)
    assert launched() == Launch("torchrun", rank=5, count=8, local_rank=1, nodes=2)
    config = compose([*SMALL, "data.batch_size=200", "accelerator=cpu"])
    with pytest.raises(ConfigError, match=r"(?s)torchrun has started 8 processes.*did you mean trainer\.devices=8"):
        choose_hardware(config)
    config.trainer.devices = None
    hardware = choose_hardware(config)
    assert (hardware.devices, hardware.nodes, hardware.per_node) == (8, 2, 4)


def test_independent_runs_under_one_srun_are_refused_with_what_to_do(monkeypatch):
    launch = Launch("srun", rank=0, count=2, local_rank=0, nodes=1)
    monkeypatch.setattr("vitrine.distributed.hardware.launched", lambda: launch)
    with pytest.raises(ConfigError, match="for independent runs start each with `srun --ntasks=1`, or use -m"):
        choose_hardware(compose([*SMALL, "accelerator=cpu"]))


def test_ranks_with_different_configurations_are_refused():
    store = HashStore()
    first, second = (Ranks(Launch("srun", rank, count=2, local_rank=rank, nodes=1), store) for rank in range(2))
    hardware = choose_hardware(compose([*SMALL, "accelerator=cpu", "trainer.precision=32-true"]))
    check_agreement(compose([*SMALL, "seed=0"]), hardware, first)
    with pytest.raises(RunError, match=r"^seed is 1 on rank 1, and 0 on rank 0; ranks train one run together"):
        check_agreement(compose([*SMALL, "seed=1"]), hardware, second)
    check_agreement(compose(SMALL), hardware, first)
    with pytest.raises(RunError, match=r"^hardware\.precision is 64-true on rank 1, and 32-true on rank 0"):
        check_agreement(compose(SMALL), replace(hardware, precision="64-true", name="another"), second)
    check_agreement(compose(SMALL), hardware, first)
    check_agreement(compose([*SMALL, "paths.data_dir=/scratch/1"]), replace(hardware, name="another"), second)


def test_a_single_rank_is_alone(monkeypatch):
    set_ranks(monkeypatch, RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1)
    assert launched() is None


def test_machines_with_different_numbers_of_ranks_under_torchrun(monkeypatch):
    set_ranks(monkeypatch, RANK=0, WORLD_SIZE=3, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2)
    with pytest.raises(RunError, match="every machine needs the same number"):
        launched()


@pytest.mark.parametrize("tasks", ["2,1", "2(x2),1"])
def test_machines_with_different_numbers_of_ranks_under_srun(monkeypatch, tasks):
    set_ranks(
        monkeypatch, SLURM_STEP_NUM_TASKS=3, SLURM_STEP_NUM_NODES=2, SLURM_PROCID=0, SLURM_LOCALID=0,
        SLURM_STEP_TASKS_PER_NODE=tasks,
    )  # fmt: skip
    with pytest.raises(RunError, match="every machine needs the same number"):
        launched()


def test_a_rank_that_is_stopped_because_of_anothers_error_prints_nothing(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(rendezvous, "_store_of_all_attempts", lambda: store)

    def reports(rank, message):
        monkeypatch.setattr(rendezvous, "launched", lambda: Launch("torchrun", rank, count=2, local_rank=rank, nodes=1))
        return rendezvous.first_to_report(message)

    assert reports(1, "no such key: deepth")
    assert not reports(0, "interrupted")
    assert not reports(0, "no such key")
    assert reports(0, "the disk is full")
