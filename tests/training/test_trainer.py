import pytest
from helpers.user_parts import enter_lab

from vitrine import compose, fit
from vitrine.config.parts import PartError
from vitrine.runs import RunRecord

LAB = "lab_of_training"
FAILING = """
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Linear):
    def __init__(self, dim, hidden):
        super().__init__(dim, dim)

    def forward(self, x):
        if self.training and x.requires_grad:
            raise ValueError("no such width")
        return super().forward(x)


def loss(logits, targets):
    return F.cross_entropy(logits, targets[:3])
"""


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"mlp={LAB}.failing.Mlp", rf"^{LAB}.failing.Mlp failed: ValueError: no such width \(.*failing.py, line 12\)$"),
        (f"loss={LAB}.failing.loss", rf"^{LAB}.failing.loss failed: ValueError: .*failing.py, line 17\)$"),
    ],
)
@pytest.mark.parametrize(
    "before", [["trainer.compile=auto"], [], ["optimizer.lr=auto"]], ids=["measured", "trained", "range-tested"]
)
def test_a_part_that_fails_in_training_is_one_line(tmp_path, monkeypatch, override, message, before):
    enter_lab(tmp_path, monkeypatch, LAB, failing=FAILING)
    small = ["model=vit_nano", "depth=1", "debug=quick", "accelerator=cpu", "trainer.compile=nothing", *before]
    with pytest.raises(PartError, match=message):
        fit(compose([*small, override, f"paths.output_dir={tmp_path}"]))
    (folder,) = (tmp_path / "runs").iterdir()
    record = RunRecord(folder)
    assert record.status == "failed"
    assert f"{override.partition('=')[2]} failed: " in record.facts["error"]
