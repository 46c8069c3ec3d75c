"""What is wrong with the HTML of a page: a validator for what our pages promise."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "input", "br", "img"}
CONTROLS = {"input", "select", "textarea"}


class Markup(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.forms: list[dict[str, Any]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self._check()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if len(found) != len(attrs):
            self.problems.append(f"<{tag}> has an attribute twice")
        self.elements.append((tag, found))
        if tag == "form":
            self.forms.append({"action": found.get("action", ""), "method": found.get("method", "get"), "fields": []})
        if tag in ("input", "button", "select", "textarea") and "form" in self._open:
            self.forms[-1]["fields"].append(found)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes another element")

    def _check(self) -> None:
        problems = self.problems
        problems += [f"<{tag}> is not closed" for tag in self._open]
        ids = Counter(found["id"] for _, found in self.elements if "id" in found)
        problems += [f"id {one} occurs {count} times" for one, count in ids.items() if count > 1]
        labelled = {found["for"] for tag, found in self.elements if tag == "label" and "for" in found}
        for tag, found in self.elements:
            problems += [f"<{tag}> has {name}" for name in found if name == "style" or name.startswith("on")]
            if tag == "style" or (tag == "script" and "src" not in found):
                problems.append(f"<{tag}> is inline")
            asks = tag in CONTROLS and found.get("type") not in ("hidden", "submit", "checkbox", "image")
            if asks and found.get("id") not in labelled and {"aria-label", "alt"}.isdisjoint(found):
                problems.append(f"<{tag} name={found.get('name')}> has no label")
            for name in ("aria-describedby", "aria-labelledby"):
                problems += [f"{name} {one} is missing" for one in found.get(name, "").split() if one not in ids]
            target = found.get("href", "")
            if target.startswith("#") and len(target) > 1 and target[1:] not in ids:
                problems.append(f"{target} leads nowhere")
            if target.startswith(("http:", "https:", "//", "javascript:")):
                problems.append(f"{target} leads elsewhere")
        for form in self.forms:
            here = form["action"] != "/login"  # there is no session yet: its origin is checked
            if here and form["method"] == "post" and not any(field.get("name") == "csrf" for field in form["fields"]):
                problems.append(f"form {form['action']} has no CSRF token")
        headings = [int(tag[1]) for tag, _ in self.elements if tag in ("h1", "h2", "h3")]
        if "html" in {tag for tag, _ in self.elements} and headings.count(1) != 1:
            problems.append(f"{headings.count(1)} headings h1")
