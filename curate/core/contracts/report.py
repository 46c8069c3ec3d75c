"""`Report`: files for people to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from curate.core.contracts.stage import Stage

if TYPE_CHECKING:
    from curate.core.view import View


class Report(Stage):
    """A page about everything upstream, read through a `View`."""

    kind: ClassVar[str] = "report"

    def render(self, view: View) -> dict[str, bytes]:
        """File name -> content; `index.html` is the page."""
        raise NotImplementedError
