"""An exported model of data.resize=crop over HTTP, without vitrine and PyTorch: pip install onnxruntime pillow.

python examples/serve_onnx.py outputs/runs/RUN/exports/model.onnx 8000  # then: curl localhost:8000 --data-binary @7.png

Of 16-bit pictures it keeps the upper byte: not for models with data.levels.
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
CLASSES = json.loads(MODEL.get_modelmeta().custom_metadata_map["classes"])
_, CHANNELS, HEIGHT, WIDTH = MODEL.get_inputs()[0].shape
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # without PostScript, which Pillow would run
Image.MAX_IMAGE_PIXELS = 12_500_000  # Pillow refuses more than twice as many: kilobytes can decode to gigabytes
SLOTS = BoundedSemaphore(2)  # pictures that are decoded and classified at a time


def prepared(content: bytes) -> np.ndarray:
    """Return a picture as the model's training had it, (C, H, W) uint8: upright, scaled to cover its input, cropped."""
    file = Image.open(io.BytesIO(content), formats=FORMATS)
    picture = ImageOps.exif_transpose(file)
    if file.mode == "F" or (file.mode == "I" and file.format not in ("PNG", "PPM")):
        raise ValueError("its pixels are of 32 bits, whose range is not known")
    if file.mode.startswith("I"):  # of 16 bits: the upper byte, where Pillow would clip at 255
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    picture = picture.convert("L" if CHANNELS == 1 else "RGB")
    scale = max(WIDTH / picture.width, HEIGHT / picture.height)
    wide, high = max(WIDTH, round(picture.width * scale)), max(HEIGHT, round(picture.height * scale))
    if wide * high > 100 * WIDTH * HEIGHT:
        raise ValueError(f"{picture.width} x {picture.height} pixels are too thin")
    box = (wide - WIDTH) // 2, (high - HEIGHT) // 2, (wide + WIDTH) // 2, (high + HEIGHT) // 2
    return np.atleast_3d(picture.resize((wide, high), Image.Resampling.BICUBIC).crop(box)).transpose(2, 0, 1)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Answer the bytes of a picture with its class."""
        try:
            if not 0 < (size := int(self.headers["Content-Length"])) <= 20_000_000:
                raise ValueError(f"Content-Length is {size}; a picture has 1 to 20,000,000 bytes")
            content = self.rfile.read(size)
            with SLOTS:
                probabilities = MODEL.run(None, {"images": prepared(content)[None]})[0][0]
            code, answer = 200, {"class": CLASSES[probabilities.argmax()], "probability": float(probabilities.max())}
        except Exception as error:
            code, answer = 400, {"error": str(error)}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


_Handler.timeout = 30  # seconds in which a silent client is dropped
ThreadingHTTPServer.request_queue_size = 128  # connections that wait; of more than its 5, the system refuses some
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
