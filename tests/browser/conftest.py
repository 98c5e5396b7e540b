"""A page of its own for each browser test, and two JupyterLabs for all: without a server, and with one."""

from __future__ import annotations

import pytest


@pytest.fixture
def page(browser, request):
    import lab_page

    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    notebook_page = lab_page.Page(context.new_page())
    yield notebook_page
    if notebook_page.page.url.startswith("http"):
        # what was on screen, also where a test failed
        notebook_page.shot(f"end_of_{request.node.name.split('[')[0]}")
    context.close()


@pytest.fixture
def open_offline(browser):
    """Return a function that opens a page from its file with the network cut, and waits until it is ready."""
    contexts, urls, wrong = [], [], []

    def open_page(address: str, **options: object):
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        opened = context.new_page()
        opened.on("request", lambda request: urls.append(request.url))
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.goto(address)
        opened.wait_for_function("document.documentElement.dataset.ready", timeout=120_000)
        return opened

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong
    assert not [url for url in urls if not url.startswith(("file:", "blob:", "data:"))]


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory):
    import lab_page

    folder = tmp_path_factory.mktemp("lab")
    with lab_page.lab(folder / "home", folder / "mine", "--no-server") as url:
        yield lab_page.SharedLab(url, folder / "home", folder / "mine")


@pytest.fixture(scope="session")
def shared_live_lab(server, live_home, tmp_path_factory):
    import lab_page

    folder = tmp_path_factory.mktemp("live_lab") / "mine"
    with lab_page.lab(live_home, folder) as url:
        yield lab_page.SharedLab(url, live_home, folder)


@pytest.fixture
def course_lab(shared_lab):
    """JupyterLab without a server."""
    shared_lab.begin()
    yield shared_lab
    shared_lab.end()


@pytest.fixture
def live_lab(shared_live_lab):
    """JupyterLab beside the server of all tests."""
    shared_live_lab.begin()
    yield shared_live_lab
    shared_live_lab.end()
