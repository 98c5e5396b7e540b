"""The built deck, measured in Chromium: whole in itself, nothing cut, nothing too small, words for every picture."""

from __future__ import annotations

import re
import zlib

import deck
import pytest

pytestmark = pytest.mark.browser
POINT_PX = 96 / 72
LEAST_POINTS = {"source": 11}  # of a slide of 1280 × 720; body text has 21
OTHERS_LEAST_POINTS = 14

# Every run of text of the slide that is shown: its box, its size on the slide, and what it belongs to.
MEASURE = """() => {
  const slide = document.querySelector('.bespoke-marp-active section');
  const frame = slide.getBoundingClientRect(), texts = [], boxes = [];
  const walker = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
  const group = e => ['source', 'where'].find(name => e.closest('.' + name))
    || (e.closest('figure') ? 'figure' : 'text');
  for (let node; node = walker.nextNode();) {
    const parent = node.parentElement;
    if (!node.textContent.trim() || parent.closest('title, style, mjx-assistive-mml') ) continue;
    const range = document.createRange(); range.selectNodeContents(node);
    const svg = parent.closest('figure > svg');
    const matrix = svg ? (parent.getScreenCTM ? parent : parent.closest('foreignObject')).getScreenCTM() : {a: 1, b: 0};
    const scale = matrix.a, turned = Math.abs(matrix.b) > 0.01;
    const size = parseFloat(getComputedStyle(parent).fontSize) * (turned ? 1 : scale);
    const around = svg ? svg.getBoundingClientRect() : null;
    for (const r of range.getClientRects())
      if (r.width > 0) texts.push({text: node.textContent.trim().slice(0, 60), size, group: group(parent), turned,
        x: r.x - frame.x, y: r.y - frame.y, w: r.width, h: r.height,
        inside: !around || (r.x >= around.x - 2 && r.right <= around.right + 2
                            && r.y >= around.y - 2 && r.bottom <= around.bottom + 2)});
  }
  for (const e of slide.querySelectorAll('figure, pre, table, .where, .source, .agenda')) {
    const r = e.getBoundingClientRect();
    boxes.push({name: e.tagName + '.' + e.className, x: r.x - frame.x, y: r.y - frame.y, w: r.width, h: r.height});
  }
  // A label is in the middle of its box, and is no wider than it.
  const spills = [];
  for (const label of slide.querySelectorAll('figure > svg text[text-anchor=middle]')) {
    const words = label.getBoundingClientRect(), middle = words.x + words.width / 2, height = words.y + words.height / 2;
    for (const box of label.closest('svg').querySelectorAll('rect')) {
      const r = box.getBoundingClientRect();
      if (Math.abs(r.x + r.width / 2 - middle) < 2 && r.y < height && height < r.bottom && r.height < 130
          && words.width > r.width + 1) spills.push(label.textContent);
    }
  }
  const number = parseFloat(getComputedStyle(slide, '::after').fontSize);
  const codes = [...slide.querySelectorAll('pre code')].map(e => ({
    lines: e.textContent.replace(/\\n$/, '').split('\\n').length,
    shown: Math.round(e.getBoundingClientRect().height / parseFloat(getComputedStyle(e.parentElement).lineHeight))}));
  const pictures = [...slide.querySelectorAll('figure > svg, img')]
    .map(e => e.getAttribute('aria-label') || e.getAttribute('alt') || '');
  return {texts, boxes, codes, pictures, spills, number, images: slide.querySelectorAll('image, img').length, width: frame.width, height: frame.height,
    scroll: [slide.scrollWidth - slide.clientWidth, slide.scrollHeight - slide.clientHeight]};
}"""


@pytest.fixture(scope="module")
def measured(page) -> list[dict]:
    """What MEASURE says of each slide."""
    slides = []
    for slide in deck.slides(page.deck):
        page.evaluate(f"location.hash = '#{slide.number}'")
        page.wait_for_function(
            "number => document.querySelector('.bespoke-marp-active "
            "section')?.dataset.marpitPagination == number "
            "|| document.querySelector('.bespoke-marp-active section')?.id == String(number)",
            arg=slide.number,
        )
        slides.append({**page.evaluate(MEASURE), "title": f"{slide.number} {slide.title}"})
    return slides


def overlap(a: dict, b: dict) -> float:
    """The area that two boxes share, in square pixels, borders of 3 pixels left out."""
    width = min(a["x"] + a["w"], b["x"] + b["w"]) - max(a["x"], b["x"]) - 3
    height = min(a["y"] + a["h"], b["y"] + b["h"]) - max(a["y"], b["y"]) - 3
    return max(0, width) * max(0, height)


def test_the_deck_has_every_slide(page, measured):
    assert (
        page.evaluate("document.querySelectorAll('section').length")
        == len(deck.slides(page.deck))
        == len(measured)
    )


def test_nothing_is_fetched(page, measured):
    assert [
        url for url in page.request_urls if not url.startswith(("file:", "data:", "blob:"))
    ] == []
    files = {
        url.split("#")[0].rsplit("/", 1)[1] for url in page.request_urls if url.startswith("file:")
    }
    assert files == {f"{page.deck}.html"}


def test_no_text_leaves_its_slide(measured):
    for slide in measured:
        assert max(slide["scroll"]) <= 1, f"{slide['title']} scrolls by {slide['scroll']}"
        for text in slide["texts"]:
            right, bottom = text["x"] + text["w"], text["y"] + text["h"]
            across = text["x"] >= 30 and right <= slide["width"] - 60
            assert across and text["y"] >= 20 and bottom <= slide["height"] - 10, (
                f"{slide['title']}: {text}"
            )
            assert text["inside"], f"{slide['title']}: cut off by its picture: {text}"
        for box in slide["boxes"]:
            right, bottom = box["x"] + box["w"], box["y"] + box["h"]
            assert bottom <= slide["height"] - 12 and right <= slide["width"] - 60, (
                f"{slide['title']}: {box}"
            )


def test_no_text_lies_on_other_text(measured):
    for slide in measured:
        for n, box in enumerate(slide["texts"]):
            for other in slide["texts"][n + 1 :]:
                # the browser sets these lines itself
                flowing = box["group"] == other["group"] != "figure"
                if flowing or box["turned"] or other["turned"] or box["text"] == other["text"]:
                    continue
                assert overlap(box, other) < 12, (
                    f"{slide['title']}: {box['text']!r} lies on {other['text']!r}"
                )


def test_no_box_lies_on_the_source_or_on_where(measured):
    for slide in measured:
        low = [box for box in slide["boxes"] if box["name"].split(".")[1] in ("source", "where")]
        for box in slide["boxes"]:
            for other in low:
                assert box is other or overlap(box, other) == 0, (
                    f"{slide['title']}: {box['name']} lies on {other['name']}"
                )


def test_no_line_of_code_is_broken(measured):
    for slide in measured:
        assert all(code["shown"] == code["lines"] for code in slide["codes"]), (
            f"{slide['title']}: {slide['codes']}"
        )


def least_px(group: str) -> float:
    return LEAST_POINTS.get(group, OTHERS_LEAST_POINTS) * POINT_PX


def test_every_text_is_read_from_the_last_row(measured):
    for slide in measured:
        assert slide["number"] >= least_px("number")
        for text in slide["texts"]:
            points = text["size"] / POINT_PX
            assert text["size"] >= least_px(text["group"]) - 0.01, (
                f"{slide['title']}: {text['text']!r}, {points:.1f} points"
            )


def test_nothing_is_a_picture_of_text(measured):
    """A screenshot's letters cannot be measured, and were half as large as those beside it."""
    assert [slide["title"] for slide in measured if slide["images"]] == []


def test_no_label_is_wider_than_its_box(measured):
    for slide in measured:
        assert slide["spills"] == [], f"{slide['title']}: {slide['spills']}"


def test_every_picture_says_in_words_what_it_shows(page, measured):
    descriptions = [text for slide in measured for text in slide["pictures"]]
    assert (
        len(descriptions) >= {"workshop": 27, "day_two": 27}[page.deck]
        and min(map(len, descriptions)) > 50
        and len(set(descriptions)) == len(descriptions)
    )


@pytest.mark.parametrize("name", deck.DECKS)
def test_the_pdf_has_a_page_for_every_slide(built, name):
    data = (built / f"{name}.pdf").read_bytes()
    objects = [data]
    # pages are listed in such streams
    for match in re.finditer(rb"/ObjStm.{0,200}?stream\r?\n", data, re.DOTALL):
        objects.append(zlib.decompressobj().decompress(data[match.end() :]))
    assert len(re.findall(rb"/Type\s*/Page\b", b"".join(objects))) == len(deck.slides(name))


@pytest.mark.parametrize("name", deck.DECKS)
def test_notes_are_in_the_html(built, name):
    page = (built / f"{name}.html").read_text(encoding="utf-8")
    assert page.count('class="bespoke-marp-note"') == len(deck.slides(name))
