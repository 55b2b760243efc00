"""Exports: a trained model as a file or folder that runs without vitrine, checked when it is made.

``formats.py`` has what can be asked for, ``exporter.py`` how an export is made, with a file for each format beside it:
``to_onnx``, ``to_torch_export``, ``to_aoti``, ``to_timm`` (safetensors) and ``to_hub`` (hf). Imports no torch.
"""
