"""A local server that receives runs from the real W&B client, with the part of W&B's protocol that this needs.

The answers have the shapes of W&B's GraphQL API and file stream. Nothing leaves the machine.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "local" + "0" * 35  # as long as a real one


@dataclass
class Run:
    """What the server has received of a run."""

    upserts: list[dict[str, Any]] = field(default_factory=list)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)  # by line
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    files: set[str] = field(default_factory=set)

    def value(self, name: str) -> Any:
        """The last value of a field that is not null."""
        return [upsert[name] for upsert in self.upserts if upsert.get(name) is not None][-1]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The history without the client's own fields."""
        lines = [self.history[line] for line in sorted(self.history)]
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in lines]


@dataclass
class Server:
    """The server's address, the runs it has received, all requests' bodies, and whether it answers the file stream."""

    url: str = ""
    runs: dict[str, Run] = field(default_factory=dict)
    received: list[bytes] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a client of this server."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false"}

    def graphql(self, query: str, values: dict[str, Any]) -> dict[str, Any]:
        """Answer a query."""
        name = re.search(r"(?:query|mutation) (\w+)", query)
        project = {"id": "p", "name": values.get("project"), "entity": {"id": "e", "name": "me"}}
        match name and name[1]:
            case "RunResumeStatus":
                run = self.runs.get(values["name"])
                return {"model": {**project, "bucket": run and self._bucket(values["name"], run, project)}}
            case "UpsertBucket":
                run = self.runs.setdefault(values["name"], Run())
                run.upserts.append(values)
                bucket = self._bucket(values["name"], run, project)
                return {"upsertBucket": {"bucket": bucket, "inserted": len(run.upserts) == 1}}
            case "CreateRunFiles":
                files = [
                    {"name": file, "uploadUrl": f"{self.url}/up/{values['run']}/{file}"} for file in values["files"]
                ]
                return {"createRunFiles": {"runID": values["run"], "uploadHeaders": [], "files": files}}
        viewer = {"id": "u", "username": "me", "entity": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer}

    def _bucket(self, identity: str, run: Run, project: dict[str, Any]) -> dict[str, Any]:
        lines = [json.dumps(run.history[line]) for line in sorted(run.history)]
        return {
            "id": identity,
            "name": identity,
            "displayName": run.value("displayName") if run.upserts and run.upserts[0].get("displayName") else identity,
            "project": project,
            "historyLineCount": len(lines),
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps(lines[-1:]),
            "eventsTail": "[]",
            "summaryMetrics": json.dumps(run.summary),
            "config": "{}",
            "tags": [],
            "notes": None,
            "wandbConfig": json.dumps({"t": 1}),
        }

    def stream(self, identity: str, sent: dict[str, Any]) -> None:
        """Receive lines of the history, the summary and the exit code."""
        run = self.runs.setdefault(identity, Run())
        for name, part in (sent.get("files") or {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                run.history |= dict(enumerate(lines, part["offset"]))
            if name == "wandb-summary.json":
                run.summary = lines[-1]
        if sent.get("complete"):
            run.exit_code = sent["exitcode"]


@contextmanager
def serving() -> Iterator[Server]:
    """A server that runs until the context ends."""
    server = Server()
    server.answers.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.received.append(body)
            answer: dict[str, Any] = {}
            if self.path == "/graphql":
                asked = json.loads(body)
                answer = {"data": server.graphql(asked["query"], asked.get("variables") or {})}
            elif self.path.endswith("/file_stream"):
                server.answers.wait(120)
                server.stream(self.path.split("/")[-2], json.loads(body))
            elif self.path.startswith("/up/"):
                _, _, identity, name = self.path.split("/", 3)
                server.runs[identity].files.add(name)
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do  # noqa: N815 - as http.server names them

    class Listening(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Ignore clients that were killed or closed the connection."""

    with Listening(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server.url = f"http://127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.answers.set()
            listening.shutdown()
