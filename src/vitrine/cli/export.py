"""Export a trained model: one file or folder that runs without vitrine, checked against PyTorch when it is made.

vitrine export RUN --format onnx                       # RUN/exports/model.onnx, for onnxruntime
vitrine export RUN --format onnx --dtype int8          # smaller; prints what it costs in accuracy
vitrine export RUN --format onnx --calibrate           # with the probabilities of predict calibrate=true
vitrine export RUN --format torch_export --to m.pt2    # for torch.export.load
vitrine export RUN --format onnx --features            # gives embeddings, too
vitrine export RUN --format aoti                       # compiled for this kind of processor
vitrine export RUN --format safetensors --to m         # for timm.create_model("local-dir:m", pretrained=True)
vitrine export RUN --format hf --hub me/digits         # with a model card; pushed with your own token
"""

from collections.abc import Sequence

from vitrine.cli.arguments import (
    add_allow_changed_code,
    add_calibrate,
    add_data_root,
    add_target,
    add_trust,
    errors_in_one_line,
    make_parser,
    positive,
)
from vitrine.inference.export.formats import DTYPES, FORMATS, ExportRequest
from vitrine.text import printable


def main(arguments: Sequence[str] | None = None) -> None:
    """Export, and print what the checks found; exits with 2 for a wrong request, with 1 for an export that fails."""
    with errors_in_one_line(exit_code=2):
        asked = request(arguments)
    with errors_in_one_line(exit_code=1):
        from vitrine.inference.export.exporter import export_run

        print(printable(export_run(asked).text))


def request(arguments: Sequence[str] | None) -> ExportRequest:
    """Parse the command line."""
    parser = make_parser("export", __doc__)
    parser.add_argument("run", metavar="RUN", help="the run folder")
    parser.add_argument("--format", required=True, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("--to", metavar="PATH", help="the file or folder to write; default: exports/ in the run folder")
    parser.add_argument("--dtype", default="float32", metavar="DTYPE", help=f"{', '.join(DTYPES)} (float32)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing export")
    parser.add_argument("--features", action="store_true", help="give the features (embeddings) of pictures, too")
    help = "the epoch to export, of those that callbacks.keep_every kept; default: the best"
    parser.add_argument("--checkpoint", type=positive, metavar="EPOCH", help=help)
    add_calibrate(parser)
    add_data_root(parser, "; --calibrate, float16 and int8 read it")
    add_target(parser)
    add_trust(parser)
    add_allow_changed_code(parser)
    parser.add_argument(
        "--license", default="unknown", metavar="NAME", help="of the model, for its card: mit, cc-by-4.0"
    )
    parser.add_argument("--hub", metavar="NAME", help="with --format hf: push it to this repository, with your token")
    return ExportRequest(**vars(parser.parse_args(arguments)))
