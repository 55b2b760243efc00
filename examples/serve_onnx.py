"""An exported model over HTTP, without vitrine and PyTorch: pip install onnxruntime pillow.

python examples/serve_onnx.py outputs/runs/RUN/exports/model.onnx 8000  # then: curl localhost:8000 --data-binary @7.png
"""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

MODEL = onnxruntime.InferenceSession(sys.argv[1])
FACTS = MODEL.get_modelmeta().custom_metadata_map
if "levels" not in FACTS:
    sys.exit(f"{sys.argv[1]} does not say how its pictures are prepared: export it anew")
CLASSES, MEAN = json.loads(FACTS["classes"]), json.loads(FACTS["mean"])
_, CHANNELS, HEIGHT, WIDTH = MODEL.get_inputs()[0].shape
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # without PostScript, which Pillow would run
Image.MAX_IMAGE_PIXELS = 12_500_000  # Pillow refuses more than twice as many: kilobytes can decode to gigabytes
SLOTS = BoundedSemaphore(2)  # pictures that are decoded and classified at a time


def prepared(content: bytes) -> np.ndarray:
    """Return a picture as the model's training had it, (C, H, W) uint8: upright, of 8 bits, and of its size."""
    file = Image.open(io.BytesIO(content), formats=FORMATS)
    has_16_bits = file.format in ("PNG", "PPM", "TIFF") and ";16" in str(file.tile)
    if has_16_bits and not file.mode.startswith("I") and FACTS["levels"] != "[0, 65535]":
        raise ValueError("its colours are of 16 bits, of which Pillow reads 8; the levels are of grey pictures")
    if CHANNELS == 4 and min(getattr(file, "tag_v2", {}).get(277, 1), 4) > len(file.getbands()):  # bands of a TIFF
        raise ValueError("its fourth band is not marked as transparency, and Pillow leaves it out")
    picture = ImageOps.exif_transpose(file)
    if file.mode == "F" or (file.mode == "I" and file.format not in ("PNG", "PPM")):
        raise ValueError("its pixels are of 32 bits, whose range is not known")
    if file.mode.startswith("I"):  # of 16 bits, which Pillow would clip at 255
        low, high = json.loads(FACTS["levels"])
        values = (np.asarray(picture).astype(np.int32) - low) * 256 // (high - low + 1)
        picture = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    pixels = np.asarray(resized(picture.convert({1: "L", 4: "RGBA"}.get(CHANNELS, "RGB"))))
    return np.atleast_3d(pixels).transpose(2, 0, 1)


def resized(picture: Image.Image) -> Image.Image:
    """Give a picture the model's size, as the export's ``resize`` says."""
    if FACTS["resize"] == "stretch":  # the largest central part that has the ratio of training's arrays
        high, wide = json.loads(FACTS["ratio"])
        scale = min(picture.height / high, picture.width / wide)
        high, wide = max(1, round(scale * high)), max(1, round(scale * wide))
        left, top = (picture.width - wide) // 2, (picture.height - high) // 2
        return picture.crop((left, top, left + wide, top + high)).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
    if FACTS["resize"] == "squash":
        return picture.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    scales = WIDTH / picture.width, HEIGHT / picture.height
    if FACTS["resize"] == "pad":
        wide, high = (max(1, round(side * min(scales))) for side in picture.size)
        wide, high = min(WIDTH, wide), min(HEIGHT, high)
        fill = tuple(round(255 * value) for value in (MEAN * CHANNELS)[:CHANNELS])
        padded = Image.new(picture.mode, (WIDTH, HEIGHT), fill)
        left, top = (WIDTH - wide) // 2, (HEIGHT - high) // 2
        padded.paste(picture.resize((wide, high), Image.Resampling.BICUBIC), (left, top))
        return padded
    covered = [int(side / float(FACTS.get("crop_pct", 1))) for side in (WIDTH, HEIGHT)]
    scale = max(covered[0] / picture.width, covered[1] / picture.height)
    wide, high = (max(least, round(side * scale)) for least, side in zip(covered, picture.size, strict=True))
    if wide * high > 100 * WIDTH * HEIGHT:
        raise ValueError(f"{picture.width} x {picture.height} pixels are too thin")
    left, top = (wide - WIDTH) // 2, (high - HEIGHT) // 2
    return picture.resize((wide, high), Image.Resampling.BICUBIC).crop((left, top, left + WIDTH, top + HEIGHT))


def answer(probabilities: np.ndarray) -> dict[str, object]:
    """Return the likeliest class; of a model of several labels per picture, those that are likelier than not."""
    if FACTS["multi_label"] == "true":
        found = zip(CLASSES, probabilities.tolist(), strict=True)
        return {"labels": {name: probability for name, probability in found if probability >= 0.5}}
    return {"class": CLASSES[probabilities.argmax()], "probability": float(probabilities.max())}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Answer the bytes of a picture with its class, or labels."""
        try:
            if not 0 < (size := int(self.headers["Content-Length"])) <= 20_000_000:
                raise ValueError(f"Content-Length is {size}; a picture has 1 to 20,000,000 bytes")
            content = self.rfile.read(size)
            with SLOTS:
                code, found = 200, answer(MODEL.run(None, {"images": prepared(content)[None]})[0][0])
        except Exception as error:
            code, found = 400, {"error": str(error).partition(" <_io")[0]}  # Pillow adds the address of the bytes
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())


_Handler.timeout = 30  # seconds in which a silent client is dropped
ThreadingHTTPServer.request_queue_size = 128  # connections that wait; of more than its 5, the system refuses some
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
