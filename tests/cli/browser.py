"""Drives headless Chromium through its DevTools protocol over a pipe, with Python's standard library alone."""
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def find_browser():
    """The browser's path; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A page in a browser of its own. Errors of scripts and requests to other hosts are collected."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        to_browser, self.to_browser = os.pipe()
        self.from_browser, from_browser = os.pipe()

        def place_pipes():  # the browser reads file descriptor 3 and writes 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [find_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=place_pipes, start_new_session=True, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.session, self.received, self.events = 0, None, b"", []
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        deadline = time.monotonic() + 10
        while True:
            try:
                return self.folder.cleanup()
            except OSError:  # a helper process of the browser, not waited for, still wrote
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def message(self):
        while b"\0" not in self.received:
            part = os.read(self.from_browser, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.received += part
        one, self.received = self.received.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open(self, url, width, height=800, dark=False):
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())

    def evaluate(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def click(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def failures(self):
        """What scripts threw since the page was opened."""
        return [event["params"]["exceptionDetails"] for event in self.events if event.get("method") == "Runtime.exceptionThrown"]

    def requests(self):
        """Addresses that the page asked for since it was opened, itself included."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def screenshot(self, path):
        """The whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1})
        path.write_bytes(base64.b64decode(shot["data"]))
