"""The static site: documentation with drawn diagrams, translator and explorer, walked without access to the network."""

import re
from pathlib import Path

import build_site
import pytest
from selenium.webdriver.common.by import By

from tests.helpers.browser import errors, requests, static_host
from tests.helpers.models import save_translator

PAGES = (
    "",
    "try_it/",
    "micro_transformer.html",
    "explanation/architecture/",
    "explanation/exercises/",
    "explorer/sentence_2.html",
    "translator/",
)
CARD = "---\nwidget:\n- text: the cat\n- text: a <b>red</b> car\n---\n\n# Card\n\nIt knows two words.\n"


def test_a_model_card_without_sentences_is_an_error(tmp_path, capsys):
    save_translator(tmp_path)
    assert build_site.main([str(tmp_path), "--output", str(tmp_path / "site")]) == 2
    assert "README.md must list sentences (widget)" in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    save_translator(folder / "model")
    (folder / "model" / "README.md").write_text(CARD)
    assert build_site.main([str(folder / "model"), "--output", str(folder / "out")]) == 0
    return folder / "out"


@pytest.mark.long
def test_links_of_the_page_that_lists_the_sentences(site):
    text = (site / "try_it" / "index.html").read_text()
    links = re.findall(r'href="(\.\./(?:translator|explorer)/[^"]*)"', text)
    assert len(links) == 3
    assert all((site / "try_it" / link).exists() for link in links)
    assert "a &lt;b&gt;red&lt;/b&gt; car" in text


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("page", PAGES)
def test_page_in_a_browser(site: Path, browser, page, width):
    """It loads nothing from other hosts, has no errors, and is not wider than the screen."""
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    with static_host(site) as address:
        browser.get(address + page)
        site_addresses = (address, f"blob:{address}")  # the code of a worker is a blob
        assert [url for url in requests(browser) if not url.startswith(site_addresses)] == []
        assert errors(browser) == []
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        if page == "explanation/architecture/":
            assert len(browser.find_elements(By.CSS_SELECTOR, "svg[id^=diagram]")) == 4
            assert "flowchart TD" not in browser.find_element(By.TAG_NAME, "main").text
