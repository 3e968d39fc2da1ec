"""Page object for a flame graph in a browser."""

from __future__ import annotations

from browser import complaints, prefer, resize, visit

from traceanalyzer.render import flamegraph

# The boxes: name, share of the width in percent, row, class.
DRAWN = """
return Array.from(document.querySelectorAll('.boxes > rect'), (box) => [
  box.getAttribute('aria-label').split(', ')[0],
  Math.round(10 * parseFloat(box.getAttribute('width'))) / 10,
  box.getAttribute('y') / 18,
  box.getAttribute('class') || '',
]);
"""


class Page:
    """Actions and content of an open flame graph."""

    def __init__(self, window):
        self.window = window

    def boxes(self):
        return self.window.execute_script(DRAWN)

    def row(self, row):
        return [(name, width) for name, width, at, _ in self.boxes() if at == row]

    def find(self, name, nth=0):
        selector = f".boxes > rect[aria-label^='{name},']"
        return self.window.find_elements("css selector", selector)[nth]

    def click(self, name, nth=0):
        self.find(name, nth).click()

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.window).send_keys(key).perform()

    def button(self, label):
        path = f"//*[local-name()='button'][text()='{label}']"
        self.window.find_element("xpath", path).click()

    def text(self, selector):
        return self.window.find_element("css selector", selector).text

    def search(self, text):
        from selenium.webdriver import Keys

        field = self.window.find_element("css selector", "input")
        field.click()  # the driver does not focus fields of SVG documents
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(Keys.BACKSPACE, text)

    @property
    def fragment(self):
        return self.window.execute_script("return location.hash")

    @property
    def focused(self):
        label = "return document.activeElement.getAttribute('aria-label') || ''"
        return self.window.execute_script(label).split(", ")[0]


def opener(window, folder):
    """Yield ``open_(flame, fragment)``, which opens a flame graph as SVG in a :class:`Page`.

    The browser must request nothing else, and report no errors at the end.
    """
    resize(window, 1200, 800)
    prefer(window, "light")

    def open_(drawn, fragment=""):
        path = folder / "flame.svg"
        requested = visit(window, path, flamegraph.svg(drawn), fragment)
        assert requested in ([path.as_uri() + fragment], [path.as_uri()])
        return Page(window)

    yield open_
    assert complaints(window) == []
    assert window.execute_script("return performance.getEntriesByType('resource').length") == 0
