"""Take docs/watch.png: run three rules against sign flipping on the embedded ICU data and capture the live page.

    python docs/tools/take_live_picture.py [FILE.png]

Needs the extras `live` and `dev`, and Chromium.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from playwright.sync_api import sync_playwright

EXPERIMENT = {
    "dataset": {"name": "icu"},
    "partition": {"name": "iid", "clients": 20},
    "attack": {"name": "sign-flip", "fraction": 0.2, "start": 15},
    "rounds": 60,
}
RULES = ("fedavg", "caac", "fltrust")  # the last one is watched while it runs
TAKEN_IN = 41  # its round
PATIENCE = 300.0


def take(picture: Path) -> None:
    """Start everything, wait for the round, take the picture, stop everything."""
    wardround = [sys.executable, "-m", "wardround"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        config, runs = Path(folder) / "experiment.yaml", Path(folder) / "runs"
        config.write_text(yaml.safe_dump(EXPERIMENT))
        for rule in RULES[:-1]:
            subprocess.run([*wardround, "run", config, f"aggregator.name={rule}", "--out", runs], check=True)
        watching = [*wardround, "watch", str(runs), "--port", "0"]
        with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None
            browser = driver.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--headless"]
            )
            page = browser.new_page(viewport={"width": 1280, "height": 1250}, color_scheme="light")
            page.goto(address[0])
            last = [*wardround, "run", str(config), f"aggregator.name={RULES[-1]}", "--out", str(runs)]
            with subprocess.Popen(last) as run:
                end = time.monotonic() + PATIENCE
                chosen = False
                while time.monotonic() < end:
                    row = page.locator("#runs button", has_text=RULES[-1])
                    if not chosen and row.count():
                        row.click()
                        chosen = True
                    if chosen and int(page.text_content("#rounds-done") or 0) >= TAKEN_IN:
                        break
                    time.sleep(0.05)
                time.sleep(0.3)  # the frame that shows it
                page.screenshot(path=picture)
                run.wait()
            browser.close()
            server.terminate()


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "watch.png")
