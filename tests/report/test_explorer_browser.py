"""The explorer in a real browser: mouse, touch and keyboard, on a phone and a desktop, offline and
under a Content-Security-Policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attsvm
import attsvm.report.explorer as explorer

pytestmark = pytest.mark.browser

PHONE, WIDE = 360, 1400
COUNT_FRAMES = """() => {
  window.frames_ = [];
  const plain = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (task) => plain((now) => {
    const began = performance.now();
    task(now);
    document.body.getBoundingClientRect(); // the layout is part of the frame
    window.frames_.push(performance.now() - began);
  });
}"""


@contextmanager
def opened(browser: Any, file: Path, width: int, anchor: str = "", **options: Any) -> Iterator[Any]:
    """A page that may say nothing on the console and ask for nothing but itself."""
    context = browser.new_context(
        offline=True,
        viewport={"width": width, "height": 900},
        has_touch=True,
        **({"reduced_motion": "reduce"} | options),
    )
    page = context.new_page()
    page.add_init_script(f"({COUNT_FRAMES})()")
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: messages.append(request.url))
    page.goto(file.as_uri() + anchor)
    yield page
    assert [text for text in messages if not text.startswith((file.as_uri(), "data:"))] == []
    context.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "explorer.html"
    path.write_text(explorer.page(), encoding="utf-8")
    return path


def token(page: Any, sequence: int, place: int) -> Any:
    return page.locator(f'.axp-token[data-i="{sequence}"][data-t="{place}"]')


def settle(page: Any) -> None:
    """Wait until what was asked for is drawn."""
    page.evaluate("() => new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")


def until(page: Any, condition: str) -> None:
    """Wait for it, without ``wait_for_function``, which the page's policy forbids."""
    page.evaluate(
        "() => new Promise(done => { const look = () => "
        f"({condition}) ? done() : requestAnimationFrame(look); look(); }})"
    )


def chosen(page: Any, sequence: int, place: int) -> bool:
    settle(page)
    return bool(token(page, sequence, place).get_attribute("aria-pressed") == "true")


def centre(locator: Any) -> tuple[float, float]:
    settle(locator.page)
    locator.scroll_into_view_if_needed()
    x, y = locator.evaluate(
        "e => { const b = e.querySelector('.axp-dot, path').getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; }"
    )
    return x, y


def verdict(page: Any) -> str:
    settle(page)
    return str(page.locator(".axp-verdict").inner_text())


def test_mouse_moves_and_chooses(browser: Any, file: Path) -> None:
    with opened(browser, file, WIDE) as page:
        before = verdict(page)
        x, y = centre(token(page, 2, 1))
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 30, y - 10, steps=4)
        page.mouse.up()
        assert centre(token(page, 2, 1)) == pytest.approx((x - 30, y - 10), abs=1.5)
        assert verdict(page) != before
        assert not chosen(page, 0, 1)
        page.mouse.click(*centre(token(page, 0, 1)))
        assert chosen(page, 0, 1)
        assert not chosen(page, 0, 0)
        page.get_by_role("button", name="Start again").click()
        assert verdict(page) == before


def test_fingers_move_tokens_and_scroll_the_page(browser: Any, file: Path) -> None:
    with opened(browser, file, PHONE) as page:
        x, y = centre(token(page, 2, 1))
        touch = page.context.new_cdp_session(page)

        def send(kind: str, *points: tuple[float, float]) -> None:
            touch.send(
                "Input.dispatchTouchEvent",
                {"type": kind, "touchPoints": [{"x": a, "y": b} for a, b in points]},
            )

        send("touchStart", (x, y))
        for k in range(1, 6):
            send("touchMove", (x - 5 * k, y - 3 * k))
            page.wait_for_timeout(30)
        send("touchEnd")
        settle(page)
        assert centre(token(page, 2, 1)) == pytest.approx((x - 25, y - 15), abs=1.5)
        page.touchscreen.tap(*centre(token(page, 0, 1)))
        settle(page)
        assert chosen(page, 0, 1)


def test_keys_move_and_choose(browser: Any, file: Path) -> None:
    with opened(browser, file, WIDE) as page:
        x, y = centre(token(page, 1, 1))
        token(page, 1, 1).focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Shift+ArrowUp")
        moved = centre(token(page, 1, 1))
        assert moved[0] < x
        assert moved[1] < y
        page.keyboard.press("Enter")
        assert chosen(page, 1, 1)
        start = page.locator(".axp-start")
        before = centre(start)
        start.focus()
        page.keyboard.press("ArrowRight")
        settle(page)
        assert centre(start)[0] > before[0]
        slider = page.get_by_label("Norm p")
        slider.focus()
        page.keyboard.press("ArrowRight")
        settle(page)
        assert slider.get_attribute("aria-valuetext") == "2.25"
        for _ in range(12):
            page.keyboard.press("ArrowRight")
        settle(page)
        assert slider.get_attribute("aria-valuetext") == "infinity"
        reached = page.evaluate(
            "() => [...document.querySelectorAll('.axp-token, .axp-start, select, button, input')]"
            ".every(e => e.tabIndex === 0)"
        )
        assert reached


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (WIDE, "dark")])
def test_every_example_shows_itself(browser: Any, file: Path, width: int, scheme: str) -> None:
    with opened(browser, file, width, color_scheme=scheme) as page:
        for k, example in enumerate(explorer.presets()):
            page.select_option("select", str(k))
            settle(page)
            assert page.locator(".axp-say").inner_text() == example.say
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert "NaN" not in page.locator(".axp").inner_html()
            assert verdict(page).startswith("Impossible") == (example.key == "impossible")
        for name in ("B2", "B3", "B4"):
            assert name in verdict(page)
        assert page.locator(".axp-token.axp-wrong").count() == 3


def test_state_lives_in_the_address(browser: Any, file: Path) -> None:
    with opened(browser, file, WIDE) as page:
        assert "#" not in page.url  # a reader who changes nothing keeps a clean address
        token(page, 0, 1).focus()
        page.keyboard.press("Enter")
        for _ in range(3):
            page.keyboard.press("ArrowLeft")
        page.evaluate("() => new Promise(done => setTimeout(done, 400))")  # longer than its own
        anchor = page.evaluate("location.hash")
        assert anchor
        said = verdict(page)
    with opened(browser, file, WIDE, anchor) as page:
        assert chosen(page, 0, 1)
        assert verdict(page) == said
    with opened(browser, file, WIDE, "#explore=nonsense") as page:
        assert verdict(page).startswith("Best margin")


def test_replay_runs_and_ends(browser: Any, file: Path) -> None:
    drawn = "document.querySelector('.axp-course').getAttribute('d').length"
    with opened(browser, file, WIDE) as page:
        whole = page.evaluate(drawn)
        page.get_by_role("button", name="Replay").click()
        until(page, f"{drawn} < {whole}")
        page.get_by_role("button", name="Stop").click()
        until(page, f"{drawn} === {whole}")


@pytest.mark.slow
def test_a_frame_takes_less_than_16_milliseconds(browser: Any, tmp_path: Path) -> None:
    """Five sequences of six tokens, dragged: mathematics, drawing and layout of each frame."""
    tokens = np.random.default_rng(0).uniform(-1, 1, (5, 6, 2))
    tokens[:, 0] += (1.0, 0.6)
    data = attsvm.AttentionData(tokens, np.ones(5), np.ones((5, 1)))
    file = tmp_path / "five.html"
    file.write_text(
        explorer.page(explorer.DataExample(explorer.state_of(data), "five", "Drag.")),
        encoding="utf-8",
    )
    with opened(browser, file, WIDE) as page:
        x, y = centre(token(page, 0, 0))
        page.mouse.move(x, y)
        page.mouse.down()
        for k in range(150):
            page.mouse.move(x + 40 * np.sin(k / 9), y + 40 * np.cos(k / 7))
            page.wait_for_timeout(5)
        page.mouse.up()
        frames = np.array(page.evaluate("window.frames_"))[20:]  # the first ones are compiled
        assert len(frames) > 50
        assert np.median(frames) < 16.0
        print(f"frame: median {np.median(frames):.1f} ms, 95% {np.quantile(frames, 0.95):.1f} ms")


def test_report_shows_it_under_its_policy(
    browser: Any, make_folder: Callable[..., Path], no_pictures: None
) -> None:
    def in_the_plane(run: dict[str, Any], arrays: dict[str, Any], shown: list[Any]) -> None:
        given = np.random.default_rng(3).normal(size=(3, 4, 2)) + 2.0 * np.eye(4)[0][:, None]
        arrays |= {
            "plane_sequence": np.arange(3),
            "plane_tokens": given,
            "plane_labels": np.ones(3),
            "plane_queries": np.ones((3, 1)),
            "plane_mask": np.ones((3, 4), dtype=bool),
            "plane_selected": np.zeros(3, dtype=int),
            "plane_scores": np.eye(4)[[0, 0, 0]],
        }

    page_file = attsvm.report.write(make_folder("array", change=in_the_plane))
    for width in (PHONE, WIDE):
        with opened(browser, page_file, width) as page:
            page.locator("details", has=page.locator(".axp-token")).first.locator(
                "summary"
            ).first.click()
            assert page.locator(".axp-token").count() == 12
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert verdict(page)
