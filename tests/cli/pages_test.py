#!/usr/bin/env python3
"""Look at the pages that plimsoll writes with headless Chromium, at the widths of a phone and of a desk.

Usage: pages_test.py PLIMSOLL [TEST ...]

Exits 77 where there is no Chromium. Prints one line per test and `N passed, N failed`.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from browser import Browser, find_browser

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "examples" / "quickstart"
PROGRAM = ""
PHONE, TABLET, DESK, WIDE = 360, 768, 1280, 1920


class Failure(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Failure(text)


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    expect(done.returncode == 0, f"{arguments[0]} exits {done.returncode}: {done.stderr.strip()[:300]}")
    return done.stdout


def compile_gpt(folder, name="gpt.plan", *options):
    run("compile", QUICKSTART / "small_gpt.onnx", "-o", folder / name, "--dim", "batch=8", "--device", "cpu", *options)
    return folder / name


# Elements that hold more than they show and do not scroll, and those that reach out of the page.
CUT_OFF = """[...document.body.querySelectorAll('*')].filter(each => {
  const style = getComputedStyle(each), box = each.getBoundingClientRect();
  if (box.width === 0 || each.closest('svg, .bar, script, noscript')) return false;
  const scrolls = ['auto', 'scroll'].includes(style.overflowX);
  const inside = each.closest('.scroll');
  return (!scrolls && style.display !== 'inline' && each.scrollWidth > each.clientWidth + 1) ||
         (!inside && (box.right > innerWidth + 1 || box.left < -1));
}).map(each => each.tagName + '.' + each.className + ' ' + each.textContent.slice(0, 40))"""


def check_page(browser, address, own=lambda url: False):
    """Opens the page at all widths: nothing is cut off, no script fails and nothing is fetched from elsewhere."""
    for width in (PHONE, TABLET, DESK, WIDE):
        browser.open(address, width, dark=width == DESK)
        expect(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"at {width} pixels the page scrolls sideways")
        cut = browser.evaluate(CUT_OFF)
        expect(cut == [], f"cut off at {width} pixels: {cut[:5]}")
        expect(browser.failures() == [], f"{browser.failures()[:1]}")
        expect(all(url == address or own(url) for url in browser.requests()), f"fetches {browser.requests()}")


# Columns times bytes that the first drawing shows.
SHOWN = "(memoryViews[0].x1 - memoryViews[0].x0) * (memoryViews[0].y1 - memoryViews[0].y0)"


def slot_of(report, name):
    return next(slot for slot in report["slots"] if slot["name"] == name)


def test_every_value_is_found_at_its_place(browser, folder):
    plan, page = compile_gpt(folder), folder / "plan.html"
    run("inspect", plan, "--html", page)
    report = json.loads(run("inspect", plan, "--json"))
    check_page(browser, page.as_uri())
    peak = report["memory"]["device"]["peak"]
    expect(browser.evaluate("memoryViews[0].liveAt(memoryViews[0].peak)") == report["memory"]["device"]["peak_live_bytes"], "the curve has another peak")
    expect(browser.evaluate("memoryViews[0].column") == peak["instruction"], "the page opens at the peak")
    text = browser.evaluate("document.querySelector('.alive').textContent")
    largest = max((slot for slot in report["slots"] if slot["category"] == "saved"), key=lambda slot: slot["bytes"])
    expect("56.6 MiB live at" in text and largest["name"] in text, text)

    # A click on a value shows its line in the model and the reason for its place.
    gelu = slot_of(report, "gelu_1")
    place = browser.evaluate("""(() => {
      const view = memoryViews[0], value = view.values.find(each => each.name === 'gelu_1'), box = view.map.getBoundingClientRect();
      view.map.scrollIntoView();
      const top = view.map.getBoundingClientRect().top;
      return [box.left + view.x((value.first + value.end) / 2), top + view.y(value.offset + value.bytes / 2)];
    })()""")
    browser.click(*place)
    text = browser.evaluate("document.querySelector('.value').innerText")
    for part in ("%gelu_1", gelu["type"], "saved", gelu["reason"], gelu["origin"]["source"], gelu["origin"]["module"]):
        expect(part in text, f"no '{part}' in: {text}")
    expect("gelu_1" in browser.evaluate("document.querySelector('.tip').textContent"), "hovering names the value")

    # A search finds values by a part of their name, and Enter goes from one to the next.
    browser.evaluate("""(() => { const search = memoryViews[0].search; search.value = '%GELU'; search.oninput(); })()""")
    count = sum("gelu" in slot["name"] for slot in report["slots"])
    expect(browser.evaluate("memoryViews[0].found.textContent") == f"{count} found", "the search counts what it finds")
    before = browser.evaluate(SHOWN)
    browser.evaluate("memoryViews[0].goToMatch(1)")
    expect(browser.evaluate(SHOWN) < before, "Enter zooms to a match")
    expect(browser.evaluate("memoryViews[0].found.textContent") == f"1 of {count}", "Enter says which match it shows")
    browser.evaluate("[...document.querySelectorAll('.tools button')].find(each => each.title === 'show everything').click()")
    expect(browser.evaluate(SHOWN) == before, "a button shows everything again")


def test_two_plans_side_by_side(browser, folder):
    plan, page = compile_gpt(folder), folder / "both.html"
    small = compile_gpt(folder, "small.plan", "--budget", "100MiB")
    run("inspect", plan, "--html", page, "--beside", small)
    check_page(browser, page.as_uri())
    tops = "[...document.querySelectorAll('.memory')].map(each => each.getBoundingClientRect().top)"
    expect(len(set(browser.evaluate(tops))) == 1, "at a desk two plans stand side by side")
    expect(browser.evaluate("new Set(memoryViews.map(each => each.top)).size") == 1, "both have one scale")
    browser.evaluate("memoryViews[0].choose(memoryViews[0].values.find(each => each.name === 'blocks.0.mlp.0.weight'))")
    chosen = browser.evaluate("[...document.querySelectorAll('.value h3')].map(each => each.textContent)")
    expect(chosen == ["%blocks.0.mlp.0.weight"] * 2, f"a value that is chosen in one is shown in the other: {chosen}")
    browser.open(page.as_uri(), PHONE)
    expect(len(set(browser.evaluate(tops))) == 2, "on a phone one plan stands below the other")


def test_host_memory_is_drawn_too(browser, folder):
    device_file, page = pathlib.Path(__file__).resolve().parents[1] / "golden" / "cpu_with_host.json", folder / "host.html"
    plan = compile_gpt(folder, "host.plan", "--device-file", device_file, "--budget", "100MiB")
    run("inspect", plan, "--html", page)
    check_page(browser, page.as_uri())
    host = json.loads(run("inspect", plan, "--json"))["memory"]["host"]
    expect(browser.evaluate("memoryViews.map(each => each.plan.space)") == ["device", "host"], "both memories are drawn")
    expect(browser.evaluate("memoryViews[1].liveAt(memoryViews[1].peak)") == host["peak_live_bytes"], "the host's curve has another peak")


def start_watching(folder):
    """The program and the address that it prints."""
    watching = subprocess.Popen([PROGRAM, "watch", folder], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return watching, watching.stdout.readline().strip()


def wait_for(browser, expression, what):
    end = time.monotonic() + 60
    while not browser.evaluate(expression):
        if time.monotonic() > end:
            raise Failure(f"{what}: {browser.evaluate('document.body && document.body.innerText')}"[:300])
        time.sleep(0.1)


def test_a_run_is_watched_over_its_plan(browser, folder):
    plan, log, page = compile_gpt(folder), folder / "log", folder / "run.html"
    train = ["run", plan, "--weights", QUICKSTART / "small_gpt.onnx", "--data", QUICKSTART / "tokens.bin", "--log", log]
    run(*train, "--steps", 4, "--profile", folder / "times")
    records = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    watching, address = start_watching(log)
    try:
        check_page(browser, address, own=lambda url: url.startswith(address))
        wait_for(browser, "runView.last && runView.last.step === 4", "the steps so far are shown")
        text = browser.evaluate("document.querySelector('.run').innerText")
        for part in ("step 4 of 4", f"loss {records[-1]['loss']:.5g};", "of 121 MiB that the plan promised", "tokens per second"):
            expect(part in text, f"no '{part}' in: {text}")
        points = browser.evaluate("runView.charts.loss.points")
        expect(points == [[each["step"], each["loss"]] for each in records], f"{points}")
        measured = browser.evaluate("[...document.querySelectorAll('tr')].map(row => row.innerText).find(text => text.startsWith('linear/onednn'))")
        expect(measured.count("ms") == 2, f"predicted and measured time of an op: {measured}")
        # From the curve to a value, its line in the model and the reason for its place.
        place = browser.evaluate("""(() => {
          const view = memoryViews[0];
          view.curve.scrollIntoView();
          const box = view.curve.getBoundingClientRect();
          return [box.left + view.x(view.bases[0] + 60.5), box.top + 40];
        })()""")
        browser.click(*place)
        expect("instruction 61 of " in browser.evaluate("document.querySelector('.alive').innerText"), "a click on the curve shows what is alive there")
        browser.evaluate("document.querySelector('.alive button').click()")
        text = browser.evaluate("document.querySelector('.value').innerText")
        expect("source" in text and ".py:" in text and "saved for" in text, text)
        # The page follows the run.
        with (log / "metrics.jsonl").open("a") as lines:
            lines.write(json.dumps({**records[-1], "step": 5, "loss": None}) + "\n")
            lines.write(json.dumps({"step": 5, "evaluation": {"loss": 1.5, "accuracy": 0.25, "samples": 8, "seconds": 1, "best": True}}) + "\n")
        wait_for(browser, "runView.last.step === 5", "the page follows the run")
        text = browser.evaluate("document.querySelector('.run').innerText")
        expect("loss not finite" in text and "accuracy 0.25" in text, text)
        run(*train, "--steps", 2)
        wait_for(browser, "typeof runView !== 'undefined' && runView.last && runView.last.step === 2", "a new run in the folder is shown anew")
    finally:
        watching.kill()
        watching.wait()
    run("watch", log, "--html", page)
    check_page(browser, page.as_uri())
    expect(browser.evaluate("runView.last.step") == 2, "the page as a file has the steps inside")


def main():
    global PROGRAM
    if not find_browser():
        print("SKIP  no Chromium here: the pages are not looked at")
        sys.exit(77)
    PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
    tests = {name[5:]: test for name, test in globals().items() if name.startswith("test_")}
    failed = 0
    for name in sys.argv[2:] or tests:
        with tempfile.TemporaryDirectory() as folder, Browser() as browser:
            try:
                tests[name](browser, pathlib.Path(folder))
                print(f"ok    {name}")
            except (Failure, RuntimeError) as failure:
                failed += 1
                print(f"FAIL  {name}: {failure}")
    print(f"{len(sys.argv[2:] or tests) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
