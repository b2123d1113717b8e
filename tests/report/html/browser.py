"""A headless Chromium, spoken to over its debugging pipe: no driver, no network, no packages."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

PATIENCE_S = 120.0


def find_chromium() -> Optional[str]:
    """The browser's path, when this machine has one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page at a time; what it complains about is kept in `complaints`."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="gpumem-browser-")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        self._numbers = itertools.count(1)
        self._rest = b""
        self._answers: Dict[int, Dict[str, Any]] = {}
        self._session: Optional[str] = None
        self.complaints: List[str] = []
        self.requests: List[str] = []
        # The browser reads commands from descriptor 3 and answers on 4; a shell puts the pipes there.
        command = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, *options, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._profile},
        )
        os.close(to_browser)
        os.close(from_browser)
        target = self.say("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.say("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.say(f"{domain}.enable")

    def say(self, method: str, **values: Any) -> Dict[str, Any]:
        """One command and its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": values}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + PATIENCE_S
        while number not in self._answers:
            self._take(deadline)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: Dict[str, Any] = answer["result"]
        return result

    def open(
        self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False, paper: bool = False
    ) -> None:
        """Show a page and wait until it has drawn itself."""
        self.complaints.clear()
        self.requests.clear()
        self.say(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.say("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        self.say("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + PATIENCE_S
        while self.run("location.href !== 'about:blank' && document.readyState") != "complete":
            assert time.monotonic() < deadline, "the page does not load"
            time.sleep(0.02)

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.say("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{code}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        size = self.say("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}
        taken = self.say("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def pdf(self) -> bytes:
        """The page as it would be printed."""
        return base64.b64decode(
            self.say("Page.printToPDF", preferCSSPageSize=False, printBackground=True)["data"]
        )

    def close(self) -> None:
        """End the browser and remove its profile."""
        self._session = None
        try:
            self.say("Browser.close")
        except (AssertionError, OSError):
            self._process.kill()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _take(self, deadline: float) -> None:
        ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, "the browser does not answer"
        data = os.read(self._read, 1 << 20)
        assert data, "the browser has ended"
        *messages, self._rest = (self._rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._hear(message["method"], message.get("params", {}))

    def _hear(self, method: str, values: Dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(values["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(values["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {values['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
