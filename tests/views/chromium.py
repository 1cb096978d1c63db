"""A headless Chromium over the DevTools pipe: enough to open a file, click, read and take screenshots.

Needs no package: messages are JSON, ended by a zero byte, on two inherited pipes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Self

_TIMEOUT_S = 30
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)


def path() -> str | None:
    """Where Chromium is, or null."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """One browser with one page.

    Attributes:
        errors: console errors, warnings and uncaught exceptions, in order.
        requests: every address asked for that is not a file, data or blob address.
    """

    def __init__(self, profile: Path) -> None:
        """Start the browser with `profile` as its fresh user directory."""
        executable = path()
        if executable is None:
            raise FileNotFoundError("chromium")
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()

        def number_pipes() -> None:
            """The browser reads commands on 3 and writes answers on 4; copies first, lest one overwrite the other."""
            read, write = os.dup(to_read), os.dup(from_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [executable, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=number_pipes,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(from_write)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._answers: dict[int, Queue[dict[str, Any]]] = {}
        self._events: Queue[dict[str, Any]] = Queue()
        self._last = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        target = self.call("Target.getTargets", session=None)["targetInfos"]
        page = next(info for info in target if info["type"] == "page")
        attached = self.call("Target.attachToTarget", session=None, targetId=page["targetId"], flatten=True)
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the browser and wait for its end."""
        with contextlib.suppress(TimeoutError, OSError):
            self.call("Browser.close", session=None)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=5)
        os.close(self._to)
        os.close(self._from)

    def call(self, method: str, session: str | None = "page", **parameters: Any) -> dict[str, Any]:
        """One DevTools command and its answer."""
        self._last += 1
        number = self._last
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        self._answers[number] = Queue()
        os.write(self._to, json.dumps(message).encode() + b"\0")
        try:
            answer = self._answers[number].get(timeout=_TIMEOUT_S)
        except Empty:
            raise TimeoutError(method) from None
        finally:
            del self._answers[number]
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, file: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Open a file from disk and wait until its script is done."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=file.resolve().as_uri())
        self.until("location.protocol === 'file:' && document.readyState === 'complete'")

    def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            if self.run(expression):
                return
            time.sleep(0.05)
        raise TimeoutError(expression)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, promises awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def click(self, selector: str, index: int = 0) -> None:
        """Click an element with the mouse, in its middle."""
        box = self.run(
            f"(() => {{ const node = document.querySelectorAll({json.dumps(selector)})[{index}];"
            " node.scrollIntoView({block: 'center', behavior: 'instant'}); const box = node.getBoundingClientRect();"
            " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", buttons=1, clickCount=1)

    def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def key(self, key: str) -> None:
        """Press and release a key."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, file: Path, *, full: bool = False, selector: str | None = None) -> None:
        """Save a picture of the window, the whole page, or one element."""
        parameters: dict[str, Any] = {"format": "png", "captureBeyondViewport": full or selector is not None}
        if selector is not None:
            box = self.run(
                f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
                " return [box.left + scrollX, box.top + scrollY, box.width, box.height]; })()"
            )
            parameters["clip"] = dict(zip(("x", "y", "width", "height"), box, strict=True), scale=1)
        elif full:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            parameters["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **parameters)["data"]))

    def _read(self) -> None:
        pending = b""
        while True:
            try:
                chunk = os.read(self._from, 1 << 20)
            except OSError:
                return
            if not chunk:
                return
            *messages, pending = (pending + chunk).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            queue = self._answers.get(message["id"])
            if queue is not None:
                queue.put(message)
            return
        method, parameters = message["method"], message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"])[:1000])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(parameters["entry"])[:1000])
        elif method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.requests.append(url)
