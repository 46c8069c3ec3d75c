"""Kit for HTML pages: design tokens, styles, macros, charts as SVG, and numbers as people read them.

Reports are one file with everything inlined; the service sends the same styles as a separate file.

numbers     numbers, shares, bytes and durations as text
charts      geometry of the charts
thumbnails  small images as bytes; the page decides whether they become data: URIs or files
page        templates and styles of all pages; renders a page into one file
"""
