"""Terms in pages link to definitions at the end of the page."""

import json
import re

import pytest

from traceanalyzer.render.html import with_glossary
from traceanalyzer.render.pieces import resource

PAGE = '<main><p class="verdict">{}</p></main>'


def test_terms_have_plain_definitions() -> None:
    for term, text in json.loads(resource("traceanalyzer.render", "glossary.json")).items():
        assert text.endswith("."), term
        assert not re.search(r"\]\(|[`*]", text), term


@pytest.mark.parametrize("text", ["Stragglers", "the straggler", "a straggler, twice: straggler"])
def test_first_occurrence_is_linked(text: str) -> None:
    page = with_glossary(PAGE.format(text))
    assert page.count('<a class="term" href="#term-straggler">') == 1
    assert page.count('<dt id="term-straggler">') == 1
    assert page.index("<dt") < page.index("</main>")


@pytest.mark.parametrize(
    "text", ["stragglers-by-rank", "&straggler;", '<a title="straggler">x</a>']
)
def test_names_and_markup_are_not_linked(text: str) -> None:
    page = PAGE.format(text)
    assert with_glossary(page) == page


def test_longest_term_wins() -> None:
    page = with_glossary(PAGE.format("exposed communication"))
    assert re.findall('href="#([^"]*)"', page) == ["term-exposed-communication"]


def test_column_heading_has_the_definition_as_tooltip() -> None:
    page = with_glossary('<main><table><th scope="col">wait time [ms]</th></table></main>')
    assert re.search('<th scope="col" title="[^"]+">wait time', page)
    assert '<dt id="term-wait-time">' in page


def test_text_outside_sentences_is_unchanged() -> None:
    page = "<main><td>straggler</td><script>straggler</script></main>"
    assert with_glossary(page) == page
