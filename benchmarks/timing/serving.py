"""Requests per second of the servers in examples/, beside the model's own time: python benchmarks/timing/serving.py.

Clients are threads, each with a connection of its own, on the machine of the server. The model is `vit_tiny`, not
trained, on pictures of 32 x 32 pixels.
"""

import base64
import http.client
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from measure import ROOT, publish
from PIL import Image

from vitrine import compose, fit, load_run
from vitrine.cli.main import main as vitrine

CLIENTS, SECONDS, ROUNDS = (1, 16), 10.0, 3
MODEL = ["model=vit_tiny", "patch=4", "data=imagefolder", "data.image_size=32", "accelerator=cpu"]
ALONE = "`run.predict` alone, a picture at a time"
BRIEF = ["trainer.max_epochs=1", "debug.limit_batches=1", "data.batch_size=8", "trainer.compile=nothing"]


def main() -> None:
    """Measure both servers and the model, in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        picture = write_pictures(folder / "pictures")
        paths = [
            f"data.root={folder / 'pictures'}",
            f"paths.output_dir={folder}",
            f"paths.cache_dir={folder / 'cache'}",
        ]
        run = load_run(fit(compose([*MODEL, *BRIEF, *paths])).run_dir)
        model = folder / "model.onnx"
        vitrine(["export", str(run.record.path), "--format", "onnx", "--to", str(model)])
        content = picture.read_bytes()
        body = json.dumps({"picture": base64.b64encode(content).decode()}).encode()
        servers = {
            "LitServe, `run.predict`": ("serve", run.record.path, "/predict", body),
            "`http.server`, onnxruntime": ("serve_onnx", model, "/", content),
        }
        found: dict[str, list[list[float]]] = {server: [[] for _ in CLIENTS] for server in servers}
        own: list[float] = []
        shuffle = random.Random(0)
        for _ in range(ROUNDS):
            for server in shuffle.sample([*servers, ALONE], len(servers) + 1):
                if server == ALONE:
                    own.append(timed(lambda: run.predict(picture, accelerator="cpu")))
                    continue
                script, path, address, sent = servers[server]
                with started(script, path) as port:
                    for number in shuffle.sample(range(len(CLIENTS)), len(CLIENTS)):
                        found[server][number].append(requests_per_second(port, address, sent, CLIENTS[number]))
        rows = [[server, *(f"{np.median(speeds):,.0f}" for speeds in each)] for server, each in found.items()]
        rows.append([ALONE, f"{1 / np.median(own):,.0f}", ""])
        text = (
            "Answers per second to clients on the same machine, each of which waits for its answer; medians of "
            f"{ROUNDS} rounds of {SECONDS:.0f} s. The model is `vit_tiny` on pictures of 32 x 32 pixels."
        )
        columns = ["server", *(f"{clients} client{'s' * (clients > 1)}, answers/s" for clients in CLIENTS)]
        clients = [f"{count} at once, answers/s" for count in CLIENTS]
        rounds = {server: dict(zip(clients, each, strict=True)) for server, each in found.items()}
        rounds["run.predict"] = {"seconds of an answer": own}
        publish("serving", title="Serving", text=text, columns=columns, rows=rows, claims={}, rounds=rounds)


def write_pictures(root: Path) -> Path:
    """Write a few random pictures of two classes to train and test on; return one."""
    random = np.random.default_rng(0)
    for index in range(80):
        for split in ("train", "test"):
            path = root / split / "ab"[index % 2] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return path


@contextmanager
def started(script: str, model: Path) -> Iterator[int]:
    """Start a server of examples/ on a free port, and stop it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, ROOT / "examples" / f"{script}.py", model, str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(port):
            assert process.poll() is None, f"{script} has ended"
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait()


def is_ready(port: int) -> bool:
    """Whether the server answers; LitServe answers 503 until its model is loaded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status != 503
    except OSError:
        return False
    finally:
        connection.close()


def requests_per_second(port: int, address: str, body: bytes, clients: int) -> float:
    """Let ``clients`` ask for ``SECONDS``, after a second of warm-up."""
    begin = time.perf_counter() + 1.0

    def ask() -> int:
        connection, count = http.client.HTTPConnection("127.0.0.1", port, timeout=60), 0
        while (now := time.perf_counter()) < begin + SECONDS:
            connection.request("POST", address, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            count += now >= begin
        connection.close()
        return count

    with ThreadPoolExecutor(clients) as pool:
        return sum(asked.result() for asked in [pool.submit(ask) for _ in range(clients)]) / SECONDS


def timed(function: object, calls: int = 100) -> float:
    """Seconds of a call, on average, after ten of warm-up."""
    assert callable(function)
    for _ in range(10):
        function()
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls


if __name__ == "__main__":
    main()
