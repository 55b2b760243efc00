"""Hugging Face data sets on disk, in the layout that ``save_to_disk`` writes."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image


def write_hub_dataset(
    root: Path,
    *,
    brighter: int = 0,
    labels: list[int] | None = None,
    damaged: int | None = None,
    patients: Callable[[str, int], object] | None = None,
    **counts: int,
) -> Path:
    """Write a data set of two classes with this many images in each split, 9 x 6 pixels of one brightness each.

    Args:
        root: folder.
        brighter: added to the brightness, which is ten times the row.
        labels: repeated over the rows; 0 and 1 if ``None``.
        damaged: row of an image that is none.
        patients: content of a further column by split and row.
        counts: number of images by split.
    """
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["aster", "rose"]}}
    for split, count in counts.items():
        folder = root / split
        folder.mkdir(parents=True, exist_ok=True)
        images = [{"bytes": _png(10 * row + brighter), "path": None} for row in range(count)]
        if damaged is not None and damaged < count:
            images[damaged]["bytes"] = b"no image"
        kinds = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        values = np.resize(labels or [0, 1], count)
        table = pa.table({"image": pa.array(images, type=kinds), "label": pa.array(values, type=pa.int64())})
        if patients is not None:
            column = pa.array([patients(split, row) for row in range(count)])
            table = table.append_column("patient", column)
            features["patient"] = {"_type": "Value", "dtype": str(column.type)}
        name = "data-00000-of-00001.arrow"
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=4)
        (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (root / "dataset_dict.json").write_text(json.dumps({"splits": list(counts)}))
    return root


def _png(brightness: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((6, 9, 3), brightness, dtype=np.uint8)).save(content, "PNG")
    return content.getvalue()
