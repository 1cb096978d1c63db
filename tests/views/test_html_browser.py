"""The report in a real browser, opened from disk with no network: no errors, no requests, everything answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tests.views import chromium
from tests.views.report_tp8 import HOSTILE, ReportResult, report_result
from tracelens.api import load
from tracelens.views.html import write_report

REAL = Path(__file__).resolve().parents[3] / "shared" / "exports"
pytestmark = pytest.mark.skipif(chromium.path() is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    with chromium.Chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(report_result(steps=120), tmp_path_factory.mktemp("report") / "r.html", version="1")


@pytest.fixture
def page(browser: chromium.Chromium, report: Path) -> Iterator[chromium.Chromium]:
    browser.errors.clear()
    browser.requests.clear()
    browser.open(report)
    yield browser
    assert browser.errors == []
    assert browser.requests == []


def test_every_section_and_chart_is_drawn(page: chromium.Chromium) -> None:
    assert page.run("[...document.querySelectorAll('section')].map(s => s.id)") == [
        *("findings", "budget", "steps", "collectives", "skew", "gaps", "timeline", "clock", "data"),
        *("definitions", "provenance"),
    ]
    drawn = page.run(
        "[...document.querySelectorAll('figure')].map(f => [f.dataset.kind, f.querySelectorAll('.plot svg, .plot canvas').length > 0,"
        " f.querySelectorAll('details').length])"
    )
    assert drawn == [
        ["stack", True, 1],
        ["points", True, 1],
        ["stack", True, 1],
        ["heat", True, 1],
        ["heat", True, 1],
        ["box", True, 1],
        ["stack", True, 1],
        ["timeline", True, 1],
    ]
    assert page.run("document.querySelectorAll('#findings .meter').length") == 2
    assert page.run("document.querySelector('.verdict').textContent").startswith("Rank 2 makes the others wait")
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), "nothing runs out of the page sideways"


def test_nothing_in_a_name_becomes_markup(page: chromium.Chromium) -> None:
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.until("[...document.querySelectorAll('details')].every(d => d.dataset.drawn || d.className === 'notes')")
    assert page.run("document.querySelectorAll('#sections img, #sections script').length") == 0
    text = page.run("document.getElementById('gaps').textContent")
    assert "</script><img src=x onerror=alert(1)>'&amp;\\x1b[31m\\u202e=cmd|x" in text


def test_whole_capture_is_one_click_away(page: chromium.Chromium) -> None:
    before = page.run("document.querySelector('#budget svg').textContent")
    page.click("#budget .tabs button", 1)
    assert page.run("document.querySelectorAll('#budget .tabs button')[1].getAttribute('aria-selected')") == "true"
    assert page.run("document.querySelector('#budget svg').textContent") != before


def test_a_click_on_the_legend_hides_a_bucket(page: chromium.Chromium) -> None:
    marks = page.run("document.querySelectorAll('#budget .mark').length")
    page.click("#budget .legend button", 1)
    assert page.run("document.querySelectorAll('#budget .mark').length") == marks - 8
    page.click("#budget .legend button", 1)
    assert page.run("document.querySelectorAll('#budget .mark').length") == marks


def test_buckets_expand_to_their_kernels(page: chromium.Chromium) -> None:
    rows = page.run("document.querySelectorAll('[data-block=buckets] tbody tr').length")
    page.click("[data-block=buckets] .expand", 0)
    assert page.run("document.querySelectorAll('[data-block=buckets] tbody tr.child').length") == 3
    assert page.run("document.querySelectorAll('[data-block=buckets] tbody tr').length") == rows + 3
    shares = page.run(
        "[...document.querySelectorAll('[data-block=buckets] tr.child')].map(r => r.children[5].textContent)"
    )
    assert shares == ["39.999", "0.001", "0.005"], "in the head's unit, ms"
    assert HOSTILE.split("\x1b")[0] in page.run("document.querySelector('[data-block=buckets] tbody').textContent")


def test_tables_sort_and_filter(page: chromium.Chromium) -> None:
    column = "[...document.querySelectorAll('[data-block=skew_ranks] tbody tr')].map(r => r.children[1].textContent)"
    page.click("[data-block=skew_ranks] th button", 1)
    assert page.run(column)[0] == "98.0"
    page.click("[data-block=skew_ranks] th button", 1)
    assert page.run(column)[-1] == "98.0"
    page.run(
        "(() => { const s = document.querySelector('[data-block=buckets] select'); s.value = '3'; s.dispatchEvent(new Event('change')); })()"
    )
    ranks = page.run(
        "[...document.querySelectorAll('[data-block=buckets] tbody tr')].map(r => r.children[0].textContent)"
    )
    assert set(ranks) == {"3"}


def test_every_table_can_be_copied_as_csv(page: chromium.Chromium) -> None:
    page.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    page.click("[data-block=edges] .copy")
    page.until("window.copied")
    lines = page.run("window.copied").splitlines()
    assert lines[0] == "cause,before_kernel,after_kernel,api_name,gap_count,gap_ns,p50_ns"
    assert lines[2].startswith("host_late,")
    assert '""</script>' in lines[2]
    assert lines[2].endswith(",1200,16000000,13000")
    tables = page.run("document.querySelectorAll('.scroll, .facts').length")
    assert page.run("document.querySelectorAll('button.copy').length") == tables


def test_charts_answer_pointer_and_keyboard(page: chromium.Chromium) -> None:
    place = page.run(
        "(() => { const m = document.querySelector('#budget .mark'); m.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const b = m.getBoundingClientRect(); return [b.x + 20, b.y + 5]; })()"
    )
    page.move(*place)
    page.until("!document.getElementById('tip').hidden")
    assert "gemm: 3.077 ms (40.0 %)" in page.run("document.getElementById('tip').textContent")
    page.run("document.querySelector('#budget .plot').focus({preventScroll: true})")
    page.key("ArrowRight")
    page.key("ArrowRight")
    assert page.run("document.getElementById('tip').textContent").startswith("rank 0\ncollective")
    page.key("Escape")
    assert page.run("document.getElementById('tip').hidden")


def test_steps_zoom_by_dragging_and_reset(page: chromium.Chromium) -> None:
    box = page.run(
        "(() => { const p = document.querySelector('#steps .plot'); p.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const b = p.getBoundingClientRect(); return [b.x, b.y]; })()"
    )
    for kind, x in (("mousePressed", 300), ("mouseMoved", 500), ("mouseReleased", 500)):
        page.call(
            "Input.dispatchMouseEvent", type=kind, x=box[0] + x, y=box[1] + 100, button="left", buttons=1, clickCount=1
        )
    assert page.run("!document.querySelector('#steps .bar .tools[hidden]')")
    page.click("#steps .bar > button.tools")
    assert page.run("document.querySelector('#steps .bar > button.tools').hidden")


def test_an_axis_of_little_span_tells_its_ticks_apart(browser: chromium.Chromium, tmp_path: Path) -> None:
    """Steps of 2.020 to 2.032 ms: no two ticks read alike, nor do the median and the 99th percentile."""
    full = report_result(steps=40)
    points = full.tables["step_points"].with_columns(
        (2_020_000 + pl.col("step") % 13 * 1_000).cast(pl.Int64).alias("step_ns"), pl.lit("decode").alias("phase")
    )
    summary = full.tables["summary"].with_columns(pl.lit(2_026_388).alias("p50_ns"), pl.lit(2_030_900).alias("p99_ns"))
    browser.open(
        write_report(ReportResult({"step_points": points, "summary": summary}), tmp_path / "r.html", version="1")
    )
    ticks = browser.run("[...document.querySelectorAll('#steps svg text[text-anchor=end]')].map(t => t.textContent)")
    assert len(ticks) > 2
    assert len(set(ticks)) == len(ticks)
    labels = browser.run("[...document.querySelectorAll('#steps svg text.strong')].map(t => t.textContent)")
    assert labels == ["p50 2.026", "p99 2.031"]


def test_timeline_zooms_and_switches(page: chromium.Chromium) -> None:
    picture = "document.querySelector('#timeline canvas').toDataURL()"
    first = page.run(picture)
    page.click("#timeline .bar > button", 1)
    zoomed = page.run(picture)
    assert zoomed != first
    page.run("document.querySelector('#timeline .plot').focus({preventScroll: true})")
    page.key("ArrowRight")
    assert page.run(picture) != zoomed
    page.key("0")
    assert page.run(picture) == first
    page.click("#timeline .tabs button", 1)
    assert page.run(picture) != first


def test_theme_follows_the_system_and_the_reader(page: chromium.Chromium, report: Path) -> None:
    page.open(report, scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.run(ground) == "rgb(14, 17, 22)"
    page.run(
        "(() => { const s = document.getElementById('theme'); s.value = 'light'; s.dispatchEvent(new Event('change')); })()"
    )
    assert page.run(ground) == "rgb(246, 247, 249)"


def test_narrow_window_does_not_scroll_sideways(page: chromium.Chromium, report: Path) -> None:
    page.open(report, width=420)
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_prints_to_paper(page: chromium.Chromium) -> None:
    assert len(page.call("Page.printToPDF", printBackground=True)["data"]) > 50_000


def test_empty_report_and_empty_tables(browser: chromium.Chromium, tmp_path: Path) -> None:
    full = report_result(steps=20)
    empty = ReportResult({name: frame.clear() for name, frame in full.tables.items()})
    for name, result in (("none", ReportResult({})), ("empty", empty)):
        browser.errors.clear()
        browser.open(write_report(result, tmp_path / f"{name}.html", version="1"))
        assert browser.errors == []
        assert browser.run("document.documentElement.dataset.ready") == "yes"
        assert browser.run("document.querySelectorAll('.absent').length") > 0


@pytest.mark.skipif(not REAL.is_dir(), reason="no folder of real exports beside this checkout")
@pytest.mark.parametrize("name", ["h100x2_before", "h100x2_after", "power_iteration_2025_3"])
def test_real_captures(browser: chromium.Chromium, tmp_path: Path, name: str) -> None:
    with load(REAL / f"{name}.sqlite", use_cache=False) as trace:
        trace.report(tmp_path / "r.html")
    browser.errors.clear()
    browser.requests.clear()
    browser.open(tmp_path / "r.html")
    assert browser.run("document.documentElement.dataset.ready") == "yes"
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.run("document.querySelectorAll('#budget .mark').length") > 0
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.errors == []
    assert browser.requests == []
    assert (tmp_path / "r.html").stat().st_size < 1_000_000


def test_comparison_and_scaling(browser: chromium.Chromium, tmp_path: Path) -> None:
    changes = pl.DataFrame(
        {
            "name": ["all_gather", "gemm", "norm"],
            "before_per_step_ns": [30_000, 4_000_000, 100_000],
            "after_per_step_ns": [278_800, 4_000_500, None],
            "delta_ns": [248_800, 500, None],
            "ci_low_ns": [247_000, -900, None],
            "ci_high_ns": [250_000, 1_900, None],
            "significant": [True, False, None],
            "status": ["same", "same", "vanished"],
        }
    )
    points = pl.DataFrame(
        {"tp": [1, 2, 4, 8], "step_us": [4481.0, 2500.0, 1500.0, None], "predicted_us": [4481.0, 2400.0, 1400.0, 900.0]}
    )
    result = ReportResult({"compare_buckets": changes, "scaling_points": points})
    browser.errors.clear()
    browser.open(write_report(result, tmp_path / "c.html", version="1"))
    assert browser.errors == []
    assert browser.run("document.querySelectorAll('[data-kind=delta] .mark').length") == 2
    assert "+248.8 us" in browser.run("document.querySelector('[data-kind=delta] svg').textContent")
    assert browser.run("document.querySelectorAll('[data-kind=scaling] .mark').length") == 7
