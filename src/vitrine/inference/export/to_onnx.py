"""``--format onnx``: an ONNX file, by PyTorch's dynamo exporter, for onnxruntime and other runtimes."""

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor

from vitrine.inference.export.checks import Runtime
from vitrine.inference.export.formats import ExportError
from vitrine.inference.export.source import ExportSource
from vitrine.text import file_size

MAX_BYTES = 2**31 - 2**24  # a protobuf message holds 2 GiB; a part of it is left for the graph


def write(source: ExportSource, path: Path) -> None:
    """Write the model as one ONNX file; with ``dtype=int8``, its matrices quantized per channel.

    Raises:
        ExportError: the model is too large for one file, or PyTorch can't translate it.
    """
    size = sum(values.nbytes for values in source.classifier.state_dict().values())
    if size > MAX_BYTES:
        problem = f"the weights take {file_size(size)}, more than one ONNX file holds (2.1 GB)"
        raise ExportError(f"{problem}; --dtype float16 halves them, --format torch_export has no limit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the translation's own dependencies
        exported = torch.onnx.export(
            source.program,
            input_names=["images"],
            output_names=source.request.outputs,
            dynamo=True,
            verbose=False,
        )
    assert exported is not None
    for part in (exported.model, exported.model.graph, *exported.model.graph):  # how PyTorch traced it
        part.metadata_props.clear()
    exported.model.metadata_props.update(source.facts)
    if source.request.dtype != "int8":
        exported.save(path, external_data=False)
        return
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # it recommends a step that is for other models
    try:
        # Signed weights overflow in onnxruntime's products on processors without VNNI.
        quantize_dynamic(exported.model_proto, path, per_channel=True, weight_type=QuantType.QUInt8)
    finally:
        logging.disable(logging.NOTSET)


def load(path: Path) -> Runtime:
    """Open the file in onnxruntime, on the CPU, with as many threads as PyTorch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # its idle threads would slow PyTorch's down
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(pictures: Tensor) -> list[Tensor]:
        return [torch.from_numpy(output) for output in session.run(None, {"images": pictures.numpy()})]

    return Runtime(f"onnxruntime {onnxruntime.__version__}", run)
