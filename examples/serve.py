r"""A run's model over HTTP, on LitServe: pip install -e '.[serve]'.

python examples/serve.py outputs/runs/RUN 8000
curl localhost:8000/predict -H "Content-Type: application/json" -d "{\"picture\": \"$(base64 -w0 7.png)\"}"
"""

import base64
import io
import signal
import sys

import litserve
from fastapi import HTTPException
from PIL import Image

from vitrine import load_run
from vitrine.errors import DataError

Image.MAX_IMAGE_PIXELS = 12_500_000  # Pillow refuses more than twice as many: kilobytes can decode to gigabytes


class Classifier(litserve.LitAPI):
    """One request at a time, so that a broken picture fails alone."""

    def setup(self, device: str) -> None:
        """Load the run in the server's worker."""
        self.run = load_run(sys.argv[1])

    def predict(self, request: dict[str, str]) -> dict[str, object]:
        """Classify the picture of a request, ``{"picture": BASE64}``."""
        try:
            prediction = self.run.predict(io.BytesIO(base64.b64decode(request["picture"])))
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise HTTPException(400, f"a picture, as base64, is expected: {error}") from error
        if self.run.config.data.multi_label:
            return {"labels": dict(prediction.labels())}
        return {"class": prediction.name, "probability": prediction.probability}


if __name__ == "__main__":
    server = litserve.LitServer(Classifier(), accelerator="cpu", max_payload_size=20_000_000)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # LitServe stops its workers at Ctrl-C alone
    server.run(port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False)
