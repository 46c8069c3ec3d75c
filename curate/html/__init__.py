"""Kit for self-contained HTML pages: a base template, styles, charts as SVG, and numbers as people read them.

numbers   numbers, shares, bytes and durations as text
charts    geometry of the charts
page      renders a page's template, style and script into one file
"""
