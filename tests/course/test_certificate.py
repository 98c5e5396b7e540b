"""The page to keep holds what the learner did: counts, predictions that came true, cards with their commands."""

from __future__ import annotations

from workshop.course.exercises.checking import check, predict
from workshop.course.progress import certificate, paths


def test_the_page_holds_what_was_done_and_nothing_else(workshop_home, monkeypatch, tmp_path):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    check("memory.kv_request_70b", 39.0625)
    assert "predictions" not in certificate.page(), "none was made"
    options = ("both", "only /health", "neither")
    predict("start.no_key", options).choose("only /health")
    predict("start.no_key", result="only /health")
    predict("memory.fits_80_gb", ("in neither", "in INT4 only", "in both")).choose("in neither")
    predict("memory.fits_80_gb", result="in both")
    written = certificate.write(tmp_path / "certificate.html")
    page = written.read_text(encoding="utf-8")
    assert "0 of 6" in page and "1 of 2" in page
    assert "only /health" in page and "a completion needs the key" in page
    assert "in neither" not in page, "a wrong prediction is nobody's business"
    assert "llm = connect()" in page and "KV heads" in page
    assert "workshop batch" not in page, "notebook 7 was not begun"
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")


def test_every_notebook_of_the_core_has_a_card_with_a_command(workshop_home):
    names = [path.stem for path in certificate.install_words.course_folder().glob("*.ipynb")]
    for name in filter(paths.CORE.has, names):
        card = dict(certificate.card(name))
        assert len(card) >= 3 and "`" not in card["command"], name
    assert "workshop batch" in dict(certificate.card("07_offline_batching"))["command"]
