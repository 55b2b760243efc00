"""An exported model of data.resize=crop over HTTP, without vitrine and PyTorch: pip install onnxruntime pillow.

python examples/serve_onnx.py outputs/runs/RUN/exports/model.onnx 8000  # then: curl localhost:8000 --data-binary @7.png
"""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

MODEL = onnxruntime.InferenceSession(sys.argv[1])
CLASSES = json.loads(MODEL.get_modelmeta().custom_metadata_map["classes"])
_, CHANNELS, HEIGHT, WIDTH = MODEL.get_inputs()[0].shape
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # without PostScript, which Pillow would run


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Answer the bytes of a picture with its class."""
        try:
            if not 0 < (size := int(self.headers["Content-Length"])) <= 20_000_000:
                raise ValueError(f"Content-Length is {size}; a picture has 1 to 20,000,000 bytes")
            upright = ImageOps.exif_transpose(Image.open(io.BytesIO(self.rfile.read(size)), formats=FORMATS))
            picture = ImageOps.fit(upright.convert("L" if CHANNELS == 1 else "RGB"), (WIDTH, HEIGHT))
            probabilities = MODEL.run(None, {"images": np.atleast_3d(picture).transpose(2, 0, 1)[None]})[0][0]
            code, answer = 200, {"class": CLASSES[probabilities.argmax()], "probability": float(probabilities.max())}
        except Exception as error:
            code, answer = 400, {"error": str(error)}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


ThreadingHTTPServer.request_queue_size = 128  # connections that wait; of more than its 5, the system refuses some
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
