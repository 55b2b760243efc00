"""``data.group``: images that belong together, as those of a patient, a slide or a scene. Imports no torch.

Images of one group are more alike than others. In two splits, they would let a model recognise the patient in place of
the disease, and measured accuracies would be too high.
"""

from collections.abc import Iterator

from vitrine.config.schema import OWN_FILES, TrainConfig
from vitrine.errors import Fault
from vitrine.text import listed, nearest

FOLDER, PREFIX = "folder", "prefix"
OF_PATHS = (FOLDER, PREFIX)  # of class folders: the folder inside the class, or the file's name up to its first _
OF_COLUMNS = ("path", "split")  # of a CSV file: these tell no groups


def group_faults(config: TrainConfig) -> Iterator[Fault]:
    """Yield what is wrong with ``data.group``."""
    data = config.data
    if (group := data.group) is None:
        return
    if data.name == "imagefolder" and group not in OF_PATHS:
        near = (found := nearest(group, OF_PATHS)) and f"data.group={found}"
        yield Fault("data.group", group, f"must be {FOLDER} or {PREFIX} with data=imagefolder", near)
    elif data.name == "csv" and group in OF_COLUMNS:
        yield Fault("data.group", group, f"must be a column that tells groups; {group} does not")
    elif data.name not in OWN_FILES:
        problem = f"is for data={listed(OWN_FILES)}, not for data={data.name}"
        yield Fault("data.group", group, problem, "data.group=null")
