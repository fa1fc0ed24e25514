"""The page in a real browser: Debian's chromium, driven by Playwright. Skipped, saying so, where either is missing."""

import re
import shutil
import subprocess
import unicodedata
import zlib

import pytest
import torch
from playwright import sync_api as playwright

from simulator.reports.figures import draw_figures
from simulator.reports.page import pictures as page_pictures
from simulator.reports.page.pages import render, run_page
from simulator.results.schema import LEAKAGE, SAMPLES
from simulator.rundir.strip import Strip
from tests.simulator.reports.conftest import large_run, leakage_row, sample_rows

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]

QUIET = "--no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --no-first-run".split()
SMALLEST = """Math.min(...[...document.querySelectorAll("body *")]
    .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
    .map(element => parseFloat(getComputedStyle(element).fontSize)))"""
FIGURES = "[...document.querySelectorAll('.chart img')].map(one => [one.naturalWidth, one.clientWidth])"
CUT = """[...document.querySelectorAll('.chart .wide')].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.getAttribute('aria-label'))"""
OVERLAPS = """[...document.querySelectorAll('.pairs')].filter(one => {
    const [a, b] = [...one.querySelectorAll('th span')].map(span => span.getBoundingClientRect());
    return b && a.bottom > b.top;
}).map(one => one.textContent)"""
A4, MARGIN = (793.7, 1122.5), 53  # CSS pixels; `@page` has 14 mm
NARROWER = """[...document.querySelectorAll('table')].filter(one => one.checkVisibility())
    .reduce((most, one) => Math.max(most, one.getBoundingClientRect().right - innerWidth), 0)"""
WIDER = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """A page with everything on it, of 10 rounds of 10 clients."""
    return page_of(large_run(tmp_path_factory.mktemp("page")))


def page_of(run):
    def strip_of(run, row, title, most=10, counted=None):
        images = torch.rand(min(most, row["recovered"]), 1, 28, 28, generator=torch.Generator().manual_seed(0))
        return Strip(title, images, images, torch.full((len(images),), 0.15).numpy(), "private", row["recovered"])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(page_pictures, "strip_of", strip_of)
        drawn = [one for one in draw_figures(run, lambda line: None) if not one.path.stem.startswith("reconstructions")]
        (run.path / "report.html").write_text(render(run_page(run, drawn)))
    return run.path / "report.html"


@pytest.fixture
def visit(browser, page_file):
    """Open the page; at the end nothing may have been said on the console, nor asked of anybody."""
    heard, asked, contexts = [], [], []

    def open_page(file=page_file, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.route("http*://**", lambda route: route.abort())
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert heard == []
    assert [url for url in asked if not url.startswith(("data:", "file:"))] == []


LEVELS = {
    "exposed": [leakage_row(1, 0), leakage_row(1, 1, 3)],
    "partly exposed": [leakage_row(1, 0, 2), leakage_row(1, 1, 0)],
    "members only": [leakage_row(1, 0, 0), leakage_row(1, 1, 0, membership_auc=0.5)],
    "attack broke": [leakage_row(1, 0, 0, membership_auc=0.5),
                     leakage_row(1, 0, attack="ntk", status="failed", membership_auc=None,
                                 detail="RuntimeError: " + "/a_long_folder" * 12)],
}  # fmt: skip


@pytest.mark.parametrize("case", LEVELS)
def test_whatever_was_found_fits_a_phone_and_its_verdict_the_first_printed_page(visit, tmp_path, case):
    run = large_run(tmp_path)
    run.leakage = LEAKAGE.frame(LEVELS[case])
    run.samples = SAMPLES.frame([sample for row in LEVELS[case] for sample in sample_rows(row)])
    page = visit(page_of(run), viewport={"width": 390, "height": 800})
    said = {"members only": "partly exposed", "attack broke": "no result"}
    assert page.locator(".verdict .word").inner_text().lower() == said.get(case, case)
    assert page.evaluate(WIDER) == 0 and page.evaluate(CUT) == page.evaluate(OVERLAPS) == []
    page.set_viewport_size({"width": round(A4[0] - 2 * MARGIN), "height": 800})
    page.emulate_media(media="print")
    assert page.evaluate("document.querySelector('.verdict').getBoundingClientRect().bottom") < A4[1] - 2 * MARGIN
    assert page.evaluate(NARROWER) == 0


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_too_wide_or_too_small(visit, width, scheme):
    page = visit(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate(WIDER) == 0
    assert page.evaluate(SMALLEST) >= 12
    figures = page.evaluate(FIGURES)
    assert len(figures) == 2 and all(shown >= 0.6 * drawn for drawn, shown in figures)  # as large as it was drawn
    ink, paper = (brightness(page, name) for name in ("color", "backgroundColor"))
    assert (ink > 500 and paper < 150) if scheme == "dark" else (ink < 150 and paper > 600)


def brightness(page, name):
    """Red, green and blue of the body added up, at most 765."""
    return sum(map(int, re.findall(r"\d+", page.evaluate(f"getComputedStyle(document.body).{name}"))))


def test_details_open_and_tables_sort_by_keyboard(visit):
    page = visit(viewport={"width": 1280, "height": 800})
    summary = page.locator("summary", has_text="All rows of leakage.csv")
    summary.focus()
    page.keyboard.press("Enter")
    table = page.locator("details[open] table.sortable")
    assert table.is_visible()
    heading = table.locator("th", has_text="leakage").first
    column = heading.evaluate("one => one.cellIndex")

    def values():
        texts = table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()
        return [float(text.split()[0]) for text in texts]  # the floor stands behind

    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending" and values() == sorted(values(), reverse=True)
    page.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") == "ascending" and values() == sorted(values())
    aligned = "one => getComputedStyle(one).textAlign"
    assert table.locator("td.number").first.evaluate(aligned) == "right"
    assert table.locator("td:not(.number)").first.evaluate(aligned) == "left"


def test_a_page_prints_with_its_verdict_on_the_first_one(visit):
    page = visit(viewport={"width": round(A4[0] - 2 * MARGIN), "height": 800}, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.querySelector('.verdict').getBoundingClientRect().bottom") < A4[1] - 2 * MARGIN
    breaks = "[...document.querySelectorAll('section')].map(one => getComputedStyle(one).breakBefore)"
    assert set(page.evaluate(breaks)) == {"auto"}  # no sheet ends before it is full
    assert page.evaluate(NARROWER) == 0  # no table is cut
    assert page.pdf(format="A4")[:4] == b"%PDF"


def test_the_command_line_of_chromium_prints_the_verdict_on_the_first_page(page_file, visit, tmp_path):
    where = tmp_path / "verdict.pdf"
    said = subprocess.run(
        [CHROMIUM, "--headless", *QUIET, "--no-pdf-header-footer", f"--print-to-pdf={where}", page_file.as_uri()],
        capture_output=True, timeout=600,
    )  # fmt: skip
    assert where.exists(), said.stderr[-500:]
    first, *others = map(without_spaces, texts_of_pages(where.read_bytes()))
    box = visit(viewport={"width": 800, "height": 800}).locator(".verdict")
    for line in box.locator("h2, h3, .headline, li").all_text_contents():
        assert without_spaces(line) in first
    assert "whocandoit,andknowingwhat" in first + others[0]


def without_spaces(text: str) -> str:
    """A text as it may be compared with that of a PDF, which has spaces, ligatures and capitals where lines, fonts
    and `text-transform` want them."""
    return re.sub(r"\s", "", unicodedata.normalize("NFKC", text)).casefold()


def texts_of_pages(pdf: bytes) -> list[str]:
    """What is written on each page of a PDF that Chromium made: its glyphs, by each font's table of letters."""
    objects = dict(re.findall(rb"(\d+) 0 obj\n(.*?)\nendobj", pdf, re.DOTALL))

    def content(number: bytes) -> str:
        return zlib.decompress(objects[number].split(b"stream\n", 1)[1]).decode("latin-1")

    def letters(font: bytes) -> dict[int, str]:
        table, found = content(re.search(rb"/ToUnicode (\d+)", objects[font])[1]), {}
        for first, last, letter in re.findall(r"^<(\w{4})> (?:<(\w{4})> )?<(\w+)>$", table, re.MULTILINE):
            start, code = int(first, 16), bytes.fromhex(letter)
            for more in range(int(last or first, 16) - start + 1):
                found[start + more] = (code[:-1] + bytes([code[-1] + more])).decode("utf-16-be")
        return found

    texts = []
    for page in (body for body in objects.values() if re.search(rb"/Type /Page\b", body)):
        fonts = {name.decode(): letters(number) for name, number in re.findall(rb"/(F\d+) (\d+) 0 R", page)}
        font, text = {}, ""
        drawn = content(re.search(rb"/Contents (\d+)", page)[1])
        for name, glyphs in re.findall(r"/(F\d+) \S+ Tf|<(\w+)> Tj", drawn):
            font = fonts[name] if name else font
            text += "".join(font.get(int(glyphs[i : i + 4], 16), "") for i in range(0, len(glyphs), 4))
        texts.append(text)
    return texts


def test_on_a_phone_no_figure_is_cut_and_no_label_meets_another(visit):
    page = visit(viewport={"width": 390, "height": 800}, color_scheme="dark")
    assert page.evaluate(CUT) == []
    assert page.evaluate(OVERLAPS) == []
    assert "invert" in page.evaluate("getComputedStyle(document.querySelector('.chart img')).filter")
